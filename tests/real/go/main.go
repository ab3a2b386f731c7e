// Franz-go consumers under remote control: one JSON command a line on stdin, one JSON event a line on stdout.
//
// It takes the same commands and tells the same events as ../java/ConsumerHost.java.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type settings struct {
	Bootstrap   string   `json:"bootstrap"`
	Group       string   `json:"group"`
	Topics      []string `json:"topics"`
	Pattern     *string  `json:"pattern"`
	Assignors   []string `json:"assignors"`
	Instance    *string  `json:"instance"`
	ClientID    string   `json:"client_id"`
	SessionMs   int      `json:"session_ms"`
	HeartbeatMs int      `json:"heartbeat_ms"`
	RebalanceMs int      `json:"rebalance_ms"`
	MetadataMs  int      `json:"metadata_ms"`
}

type command struct {
	ID     string   `json:"id"`
	Do     string   `json:"do"`
	Config settings `json:"config"`
}

type event map[string]any

var stdout sync.Mutex

func emit(id, name string, fields event) {
	line := event{"id": id, "event": name}
	for key, value := range fields {
		line[key] = value
	}
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	stdout.Lock()
	defer stdout.Unlock()
	fmt.Println(string(text))
}

func pairs(partitions map[string][]int32) [][]any {
	list := [][]any{}
	for topic, numbers := range partitions {
		for _, number := range numbers {
			list = append(list, []any{topic, number})
		}
	}
	sort.Slice(list, func(a, b int) bool { return fmt.Sprint(list[a]) < fmt.Sprint(list[b]) })
	return list
}

func balancers(names []string) ([]kgo.GroupBalancer, error) {
	known := map[string]kgo.GroupBalancer{
		"range":              kgo.RangeBalancer(),
		"roundrobin":         kgo.RoundRobinBalancer(),
		"sticky":             kgo.StickyBalancer(),
		"cooperative-sticky": kgo.CooperativeStickyBalancer(),
	}
	chosen := []kgo.GroupBalancer{}
	for _, name := range names {
		balancer, found := known[name]
		if !found {
			return nil, fmt.Errorf("no assignor %s", name)
		}
		chosen = append(chosen, balancer)
	}
	return chosen, nil
}

// member polls one consumer and serves its commands until it is closed.
func member(id string, config settings, commands <-chan string) {
	defer emit(id, "closed", nil)
	if err := serve(id, config, commands); err != nil {
		emit(id, "error", event{"error": err.Error()})
	}
}

func serve(id string, config settings, commands <-chan string) error {
	chosen, err := balancers(config.Assignors)
	if err != nil {
		return err
	}
	told := func(name string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			emit(id, name, event{"partitions": pairs(partitions)})
		}
	}
	ms := func(count int) time.Duration { return time.Duration(count) * time.Millisecond }
	options := []kgo.Opt{
		kgo.SeedBrokers(config.Bootstrap),
		kgo.ConsumerGroup(config.Group),
		kgo.ClientID(config.ClientID),
		kgo.Balancers(chosen...),
		kgo.SessionTimeout(ms(config.SessionMs)),
		kgo.HeartbeatInterval(ms(config.HeartbeatMs)),
		kgo.RebalanceTimeout(ms(config.RebalanceMs)),
		kgo.MetadataMaxAge(ms(config.MetadataMs)),
		kgo.MetadataMinAge(ms(config.MetadataMs) / 2),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(told("assigned")),
		kgo.OnPartitionsRevoked(told("revoked")),
		kgo.OnPartitionsLost(told("lost")),
	}
	if config.Instance != nil {
		options = append(options, kgo.InstanceID(*config.Instance))
	}
	if config.Pattern != nil {
		options = append(options, kgo.ConsumeRegex(), kgo.ConsumeTopics("^"+*config.Pattern+"$"))
	} else {
		options = append(options, kgo.ConsumeTopics(config.Topics...))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	polling := true
	for {
		var next string
		if polling {
			select {
			case next = <-commands:
			default:
				poll(id, client)
				continue
			}
		} else {
			next = <-commands
		}
		switch next {
		case "commit":
			commit(id, client)
		case "pause", "resume":
			polling = next == "resume"
		case "close":
			client.Close()
			return nil
		default:
			return fmt.Errorf("no command %s", next)
		}
	}
}

func poll(id string, client *kgo.Client) {
	wait, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	ranges := [][]any{}
	client.PollFetches(wait).EachPartition(func(fetched kgo.FetchTopicPartition) {
		if count := len(fetched.Records); count > 0 {
			first, last := fetched.Records[0].Offset, fetched.Records[count-1].Offset
			ranges = append(ranges, []any{fetched.Topic, fetched.Partition, first, last + 1})
		}
	})
	if len(ranges) > 0 {
		emit(id, "records", event{"ranges": ranges})
	}
}

func commit(id string, client *kgo.Client) {
	wait, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	done := event{"error": nil}
	offsets := [][]any{}
	for topic, partitions := range client.UncommittedOffsets() {
		for partition, offset := range partitions {
			offsets = append(offsets, []any{topic, partition, offset.Offset})
		}
	}
	if err := client.CommitUncommittedOffsets(wait); err != nil {
		done["error"] = err.Error()
	}
	done["offsets"] = offsets
	emit(id, "committed", done)
}

func main() {
	if len(os.Args) == 7 && os.Args[1] == "transact" {
		if err := transact(os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	members := map[string]chan string{}
	emit("", "ready", nil)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var asked command
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		switch asked.Do {
		case "admin":
			var put question
			if err := json.Unmarshal(lines.Bytes(), &put); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
			go answer(asked.ID, put)
		case "open":
			members[asked.ID] = make(chan string, 16)
			go member(asked.ID, asked.Config, members[asked.ID])
		default:
			members[asked.ID] <- asked.Do
		}
	}
}
