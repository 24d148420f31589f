package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func producerOptions(with arguments) []producer.Option {
	chosen := []producer.Option{
		producer.WithNameServer(strings.Split(with.Namesrv, ";")),
		producer.WithGroupName(with.Group),
		producer.WithInstanceName(instance()),
		producer.WithNamespace(with.Namespace),
		producer.WithSendMsgTimeout(10 * time.Second),
	}
	if with.CompressOver > 0 {
		chosen = append(chosen, producer.WithCompressMsgBodyOverHowmuch(with.CompressOver))
	}
	switch with.Selector {
	case "manual":
		chosen = append(chosen, producer.WithQueueSelector(producer.NewManualQueueSelector()))
	case "hash":
		chosen = append(chosen, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	if with.Hooks {
		chosen = append(chosen, producer.WithInterceptor(interceptor(with.Group)))
	}
	if with.TraceTopic != "" {
		chosen = append(chosen, producer.WithTrace(traceOf(with)))
	}
	if with.AccessKey != "" {
		chosen = append(chosen, producer.WithCredentials(with.credentials()))
	}
	if with.TLS {
		chosen = append(chosen, tlsProducer())
	}
	return chosen
}

func traceOf(with arguments) *primitive.TraceConfig {
	return &primitive.TraceConfig{
		TraceTopic: with.TraceTopic, GroupName: with.Group + "-trace", Access: primitive.Local,
		NamesrvAddrs: strings.Split(with.Namesrv, ";"),
		Resolver:     primitive.NewPassthroughResolver(strings.Split(with.Namesrv, ";")),
	}
}

func producerStart(with arguments) (any, error) {
	made, err := rocketmq.NewProducer(producerOptions(with)...)
	if err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	return keep(made), nil
}

type sent struct {
	Status        int    `json:"status"`
	MsgID         string `json:"msg_id"`
	OffsetMsgID   string `json:"offset_msg_id"`
	TransactionID string `json:"transaction_id"`
	Topic         string `json:"topic"`
	BrokerName    string `json:"broker_name"`
	QueueID       int    `json:"queue_id"`
	QueueOffset   int64  `json:"queue_offset"`
	Region        string `json:"region"`
	TraceOn       bool   `json:"trace_on"`
	State         int    `json:"state"`
}

func outcome(result *primitive.SendResult) sent {
	return sent{
		Status: int(result.Status), MsgID: result.MsgID, OffsetMsgID: result.OffsetMsgID,
		TransactionID: result.TransactionID, Topic: result.MessageQueue.Topic, BrokerName: result.MessageQueue.BrokerName,
		QueueID: result.MessageQueue.QueueId, QueueOffset: result.QueueOffset, Region: result.RegionID,
		TraceOn: result.TraceOn,
	}
}

func producerSend(with arguments) (any, error) {
	return send(held[rocketmq.Producer](with), with.Mode, with.Message.build())
}

func producerSendBatch(with arguments) (any, error) {
	batch := make([]*primitive.Message, 0, len(with.Messages))
	for _, one := range with.Messages {
		batch = append(batch, one.build())
	}
	return send(held[rocketmq.Producer](with), with.Mode, batch...)
}

func send(from rocketmq.Producer, mode string, messages ...*primitive.Message) (any, error) {
	switch mode {
	case "oneway":
		return nil, from.SendOneWay(context.Background(), messages...)
	case "async":
		type answered struct {
			result *primitive.SendResult
			err    error
		}
		answer := make(chan answered, 2)
		err := from.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			answer <- answered{result, err}
		}, messages...)
		if err != nil {
			return nil, err
		}
		got := <-answer
		if got.err != nil {
			return nil, got.err
		}
		return outcome(got.result), nil
	default:
		result, err := from.SendSync(context.Background(), messages...)
		if err != nil {
			return nil, err
		}
		return outcome(result), nil
	}
}

// producerRequest waits for the reply to a request, by the blocking form or by callback.
func producerRequest(with arguments) (any, error) {
	from := held[rocketmq.Producer](with)
	body := func(got *primitive.Message) any {
		return map[string]any{"body": got.Body, "properties": got.GetProperties()}
	}
	if with.Mode != "async" {
		got, err := from.Request(context.Background(), with.timeout(), with.Message.build())
		if err != nil {
			return nil, err
		}
		return body(got), nil
	}
	answer := make(chan *primitive.Message, 1)
	failed := make(chan error, 1)
	err := from.RequestAsync(context.Background(), with.timeout(), func(_ context.Context, got *primitive.Message, err error) {
		if err != nil {
			failed <- err
		} else {
			answer <- got
		}
	}, with.Message.build())
	if err != nil {
		return nil, err
	}
	select {
	case got := <-answer:
		return body(got), nil
	case err := <-failed:
		return nil, err
	case <-time.After(with.timeout()):
		return nil, errors.New("no reply")
	}
}

// ---- transactions

// transactions is a producer whose messages say themselves what comes of them: the property `local` is the state of
// the local transaction, `checks` the answers to checks, separated by commas; the last one is repeated.
type transactions struct {
	rocketmq.TransactionProducer
	lock  sync.Mutex
	asked []*primitive.MessageExt
}

var states = map[string]primitive.LocalTransactionState{
	"COMMIT_MESSAGE":   primitive.CommitMessageState,
	"ROLLBACK_MESSAGE": primitive.RollbackMessageState,
	"UNKNOW":           primitive.RollbackMessageState + 1, // its name is not the same in all versions
}

func (kept *transactions) ExecuteLocalTransaction(given *primitive.Message) primitive.LocalTransactionState {
	return states[given.GetProperty("local")]
}

func (kept *transactions) CheckLocalTransaction(given *primitive.MessageExt) primitive.LocalTransactionState {
	answers := strings.Split(given.GetProperty("checks"), ",")
	kept.lock.Lock()
	defer kept.lock.Unlock()
	before := 0
	for _, other := range kept.asked {
		if other.TransactionId == given.TransactionId {
			before++
		}
	}
	kept.asked = append(kept.asked, given)
	return states[answers[min(before, len(answers)-1)]]
}

func transactionStart(with arguments) (any, error) {
	kept := &transactions{}
	made, err := rocketmq.NewTransactionProducer(kept, producerOptions(with)...)
	if err != nil {
		return nil, err
	}
	kept.TransactionProducer = made
	if err := made.Start(); err != nil {
		return nil, err
	}
	return keep(kept), nil
}

func transactionSend(with arguments) (any, error) {
	result, err := held[*transactions](with).SendMessageInTransaction(context.Background(), with.Message.build())
	if err != nil {
		return nil, err
	}
	answer := outcome(result.SendResult)
	answer.State = int(result.State)
	return answer, nil
}

func transactionChecked(with arguments) (any, error) {
	kept := held[*transactions](with)
	kept.lock.Lock()
	defer kept.lock.Unlock()
	return allShown(kept.asked), nil
}
