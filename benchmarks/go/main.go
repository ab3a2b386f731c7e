// franz-go's cooperative-sticky balancer, timed through its public interface. Reads groups as lines (see ../peers.py)
// and answers each with one line of JSON.
//
// The two figures are `plan`, its balancing of parsed members into maps, and `bytes`, from the members' bytes to the
// assignments' bytes as its client does when it leads a group. Times are CPU time of the one thread that works, so
// without the collector's own threads.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type group struct {
	topics  map[string]int32
	members []*kmsg.ConsumerMemberMetadata
	names   []string
	index   map[string]int
}

type answer struct {
	Plan  []float64 `json:"plan"`
	Bytes []float64 `json:"bytes"`
	Loads [2]int    `json:"loads"`
	Error string    `json:"error,omitempty"`
}

func empty() *group {
	return &group{topics: map[string]int32{}, index: map[string]int{}}
}

// encoded is the JoinGroup response's list of members, as the client hands it to a balancer: sorted by member id.
func (g *group) encoded() []kmsg.JoinGroupResponseMember {
	members := make([]kmsg.JoinGroupResponseMember, len(g.names))
	for i, name := range g.names {
		members[i] = kmsg.NewJoinGroupResponseMember()
		members[i].MemberID = name
		members[i].ProtocolMetadata = g.members[i].AppendTo(nil)
	}
	sort.Slice(members, func(a, b int) bool { return members[a].MemberID < members[b].MemberID })
	return members
}

func threadTime() time.Duration {
	var now syscall.Timespec
	const threadCPU = 3 // CLOCK_THREAD_CPUTIME_ID
	if _, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, threadCPU, uintptr(unsafe.Pointer(&now)), 0); failed != 0 {
		panic(failed)
	}
	return time.Duration(now.Nano())
}

func milliseconds(since time.Duration) float64 {
	return float64((threadTime() - since).Microseconds()) / 1000
}

func (g *group) lead(members []kmsg.JoinGroupResponseMember) (plan, bytes float64, sync []kmsg.SyncGroupRequestGroupAssignment, err error) {
	begin := threadTime()
	balancer, _, err := kgo.CooperativeStickyBalancer().MemberBalancer(members)
	if err != nil {
		return 0, 0, nil, err
	}
	between := threadTime()
	into, err := balancer.(kgo.GroupMemberBalancerOrError).BalanceOrError(g.topics)
	if err != nil {
		return 0, 0, nil, err
	}
	plan = milliseconds(between)
	sync = into.IntoSyncAssignment()
	return plan, milliseconds(begin), sync, nil
}

func (g *group) measure(members []kmsg.JoinGroupResponseMember, warmups, rounds int, budget time.Duration) (result answer) {
	defer func() {
		if problem := recover(); problem != nil {
			result.Error = fmt.Sprint(problem)
		}
	}()
	begin := time.Now()
	var last []kmsg.SyncGroupRequestGroupAssignment
	for round := -warmups; round < rounds && (len(result.Plan) == 0 || time.Since(begin) < budget); round++ {
		if round < 0 && time.Since(begin) > budget/4 {
			round = 0
		}
		plan, bytes, sync, err := g.lead(members)
		if err != nil {
			result.Error = err.Error()
			return result
		}
		last = sync
		if round >= 0 || time.Since(begin) > budget {
			result.Plan = append(result.Plan, plan)
			result.Bytes = append(result.Bytes, bytes)
		}
	}
	for i, one := range last {
		topics, err := kgo.ParseConsumerSyncAssignment(one.MemberAssignment)
		if err != nil {
			panic(err)
		}
		load := 0
		for _, partitions := range topics {
			load += len(partitions)
		}
		if i == 0 || load < result.Loads[0] {
			result.Loads[0] = load
		}
		if load > result.Loads[1] {
			result.Loads[1] = load
		}
	}
	return result
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	runtime.LockOSThread()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<28)
	out := json.NewEncoder(os.Stdout)
	g := empty()
	var members []kmsg.JoinGroupResponseMember
	for lines.Scan() {
		field := strings.Split(lines.Text(), " ")
		switch field[0] {
		case "T":
			g.topics[field[1]] = int32(number(field[2]))
		case "M":
			metadata := kmsg.NewConsumerMemberMetadata()
			metadata.Version = 3
			metadata.Generation = int32(number(field[2]))
			if field[3] != "" {
				metadata.Topics = strings.Split(field[3], ",")
			}
			g.index[field[1]] = len(g.names)
			g.names = append(g.names, field[1])
			g.members = append(g.members, &metadata)
		case "O":
			owned := kmsg.NewConsumerMemberMetadataOwnedPartition()
			owned.Topic = field[2]
			for _, text := range strings.Split(field[3], ",") {
				owned.Partitions = append(owned.Partitions, int32(number(text)))
			}
			member := g.members[g.index[field[1]]]
			member.OwnedPartitions = append(member.OwnedPartitions, owned)
		case "G":
			members = g.encoded()
			runtime.GC()
			fmt.Println("ready")
		case "E":
			budget := time.Duration(number(field[4])) * time.Millisecond
			if err := out.Encode(g.measure(members, number(field[2]), number(field[3]), budget)); err != nil {
				panic(err)
			}
		case "N":
			g, members = empty(), nil
		}
	}
}
