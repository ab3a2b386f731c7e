package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// transact runs transactions as franz-go's users do: commits and aborts, a second instance that fences the first, and
// a session that consumes one topic and produces to another.
func transact(bootstrap, id, group, source, target string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	first, err := producer(bootstrap, id)
	if err != nil {
		return err
	}
	defer first.Close()
	for number, commit := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		if err := once(ctx, first, target, fmt.Sprintf("own-%d", number), commit); err != nil {
			return err
		}
	}
	second, err := producer(bootstrap, id)
	if err != nil {
		return err
	}
	defer second.Close()
	if err := once(ctx, second, target, "second", kgo.TryCommit); err != nil {
		return err
	}
	if once(ctx, first, target, "fenced", kgo.TryCommit) == nil {
		return errors.New("the first instance was not fenced")
	}
	return copyAll(ctx, bootstrap, id+"-copy", group, source, target)
}

func producer(bootstrap, id string) (*kgo.Client, error) {
	return kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID(id), kgo.TransactionTimeout(20*time.Second))
}

func once(ctx context.Context, client *kgo.Client, topic, value string, end kgo.TransactionEndTry) error {
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	sent := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr()
	if sent != nil {
		end = kgo.TryAbort
	}
	ended := client.EndTransaction(ctx, end)
	return errors.Join(sent, ended)
}

// copyAll copies ten records in each transaction, and aborts the first.
func copyAll(ctx context.Context, bootstrap, id, group, source, target string) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap),
		kgo.TransactionalID(id),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	for copied, aborted := 0, false; copied < 40; {
		fetches := session.PollRecords(ctx, 10)
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := session.Begin(); err != nil {
			return err
		}
		records := fetches.Records()
		for _, record := range records {
			session.Produce(ctx, &kgo.Record{Topic: target, Value: record.Value}, nil)
		}
		end := kgo.TryCommit
		if !aborted {
			end, aborted = kgo.TryAbort, true
		}
		committed, err := session.End(ctx, end)
		if err != nil {
			return err
		}
		if committed {
			copied += len(records)
		}
	}
	return nil
}
