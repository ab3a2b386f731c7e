package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// question is one step of a transactional producer, known by the handle it was opened with.
type question struct {
	Bootstrap string   `json:"bootstrap"`
	Step      string   `json:"step"`
	Handle    string   `json:"handle"`
	Name      string   `json:"name"`
	TimeoutMs int      `json:"timeout_ms"`
	Topic     string   `json:"topic"`
	Values    []string `json:"values"`
}

var (
	producersLock sync.Mutex
	producers     = map[string]*kgo.Client{}
)

// answer does the step and says how it went, as ../java/AdminDesk.java does.
func answer(id string, asked question) {
	told := event{"result": event{}}
	if err := step(asked); err != nil {
		told = event{"error": err.Error()}
	}
	emit(id, "answer", told)
}

func step(asked question) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	producersLock.Lock()
	client := producers[asked.Handle]
	producersLock.Unlock()
	switch asked.Step {
	case "open":
		opened, err := kgo.NewClient(
			kgo.SeedBrokers(asked.Bootstrap),
			kgo.TransactionalID(asked.Name),
			kgo.TransactionTimeout(time.Duration(asked.TimeoutMs)*time.Millisecond),
		)
		if err != nil {
			return err
		}
		producersLock.Lock()
		producers[asked.Handle] = opened
		producersLock.Unlock()
		_, _, err = opened.ProducerID(ctx) // other clients take their id when they are opened
		return err
	case "begin":
		return client.BeginTransaction()
	case "send":
		var failed error
		for _, value := range asked.Values {
			record := &kgo.Record{Topic: asked.Topic, Value: []byte(value)}
			failed = errors.Join(failed, client.ProduceSync(ctx, record).FirstErr())
		}
		return failed
	case "commit":
		return client.EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		return client.EndTransaction(ctx, kgo.TryAbort)
	case "close":
		client.Close()
		return nil
	}
	return fmt.Errorf("no step %s", asked.Step)
}
