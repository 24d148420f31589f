package main

import (
	"context"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

type message struct {
	Topic      string            `json:"topic"`
	Body       []byte            `json:"body"`
	Tag        *string           `json:"tag"`
	Keys       []string          `json:"keys"`
	Group      *string           `json:"group"`
	LiteTopic  *string           `json:"lite_topic"`
	DelayMs    *int64            `json:"delay_ms"`
	Priority   *int32            `json:"priority"`
	Properties map[string]string `json:"properties"`
}

func (given message) made() (*rocketmq.Message, error) {
	made := &rocketmq.Message{Topic: given.Topic, Body: given.Body}
	if given.Tag != nil {
		made.SetTag(*given.Tag)
	}
	if given.Keys != nil {
		made.SetKeys(given.Keys...)
	}
	if given.Group != nil {
		made.SetMessageGroup(*given.Group)
	}
	if given.LiteTopic != nil {
		made.SetLiteTopic(*given.LiteTopic)
	}
	if given.DelayMs != nil {
		made.SetDelayTimestamp(time.Now().Add(milliseconds(*given.DelayMs)))
	}
	for key, value := range given.Properties {
		made.AddProperty(key, value)
	}
	if given.Priority != nil {
		return made, made.SetPriority(*given.Priority)
	}
	return made, nil
}

// sender is a producer, and the bodies of the transactions that it was asked for.
type sender struct {
	rocketmq.Producer
	lock    sync.Mutex
	checked [][]byte
}

var resolutions = map[string]rocketmq.TransactionResolution{
	"COMMIT": rocketmq.COMMIT, "ROLLBACK": rocketmq.ROLLBACK, "UNKNOWN": rocketmq.UNKNOWN,
}

func producerStart(with arguments) (any, error) {
	made := &sender{}
	options := []rocketmq.ProducerOption{rocketmq.WithTopics(with.Topics...)}
	if with.Checker != "" {
		options = append(options, rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{
			Check: func(view *rocketmq.MessageView) rocketmq.TransactionResolution {
				made.lock.Lock()
				defer made.lock.Unlock()
				made.checked = append(made.checked, view.GetBody())
				return resolutions[with.Checker]
			},
		}))
	}
	producer, err := rocketmq.NewProducer(with.configuration(), options...)
	if err != nil {
		return nil, err
	}
	made.Producer = producer
	if err := producer.Start(); err != nil {
		return nil, err
	}
	return keep(made), nil
}

type receipt struct {
	ID           string `json:"id"`
	RecallHandle string `json:"recall_handle"`
}

func receipts(sent []*rocketmq.SendReceipt) []receipt {
	shown := []receipt{}
	for _, each := range sent {
		shown = append(shown, receipt{ID: each.MessageID, RecallHandle: each.RecallHandle})
	}
	return shown
}

// producerSend sends one message after the other, or all at once with "together".
func producerSend(with arguments) (any, error) {
	producer := held[*sender](with.Handle)
	type outcome struct {
		sent []*rocketmq.SendReceipt
		err  error
	}
	var outcomes []chan outcome
	for _, given := range with.Messages {
		made, err := given.made()
		if err != nil {
			return nil, err
		}
		done := make(chan outcome, 1)
		outcomes = append(outcomes, done)
		if with.Together {
			producer.SendAsync(context.Background(), made, func(_ context.Context, sent []*rocketmq.SendReceipt, err error) {
				done <- outcome{sent, err}
			})
		} else {
			sent, err := producer.Send(context.Background(), made)
			done <- outcome{sent, err}
		}
	}
	all := []receipt{}
	for _, done := range outcomes {
		got := <-done
		if got.err != nil {
			return nil, got.err
		}
		all = append(all, receipts(got.sent)...)
	}
	return all, nil
}

func producerRecall(with arguments) (any, error) {
	return held[*sender](with.Handle).Recall(context.Background(), with.Topic, with.RecallHandle)
}

// producerTransact sends a message in a transaction that ends with commit, rollback or, for now, not at all.
func producerTransact(with arguments) (any, error) {
	producer := held[*sender](with.Handle)
	made, err := with.Message.made()
	if err != nil {
		return nil, err
	}
	transaction := producer.BeginTransaction()
	sent, err := producer.SendWithTransaction(context.Background(), made, transaction)
	if err != nil {
		return nil, err
	}
	switch with.End {
	case "commit":
		err = transaction.Commit()
	case "rollback":
		err = transaction.RollBack()
	}
	return receipts(sent)[0], err
}

func producerChecked(with arguments) (any, error) {
	producer := held[*sender](with.Handle)
	producer.lock.Lock()
	defer producer.lock.Unlock()
	return append([][]byte{}, producer.checked...), nil
}
