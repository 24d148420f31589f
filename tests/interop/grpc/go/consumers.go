package main

import (
	"context"
	"errors"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

const messageNotFound = 40401

type view struct {
	View              int               `json:"view"`
	ID                string            `json:"id"`
	Topic             string            `json:"topic"`
	LiteTopic         string            `json:"lite_topic"`
	Body              []byte            `json:"body"`
	Tag               *string           `json:"tag"`
	Keys              []string          `json:"keys"`
	Group             *string           `json:"group"`
	DeliveryTimestamp *int64            `json:"delivery_timestamp"`
	Properties        map[string]string `json:"properties"`
	BornTimestamp     int64             `json:"born_timestamp"`
	Attempt           int32             `json:"attempt"`
}

func shown(got *rocketmq.MessageView) view {
	made := view{
		ID: got.GetMessageId(), Topic: got.GetTopic(), LiteTopic: got.GetLiteTopic(), Body: got.GetBody(),
		Tag: got.GetTag(), Keys: got.GetKeys(), Group: got.GetMessageGroup(), Properties: got.GetProperties(),
		BornTimestamp: got.GetBornTimestamp().UnixMilli(), Attempt: got.GetDeliveryAttempt(),
	}
	if due := got.GetDeliveryTimestamp(); due != nil {
		due_ms := due.UnixMilli()
		made.DeliveryTimestamp = &due_ms
	}
	return made
}

// ---- simple

func simpleStart(with arguments) (any, error) {
	consumer, err := rocketmq.NewSimpleConsumer(
		with.configuration(),
		rocketmq.WithSimpleAwaitDuration(milliseconds(with.AwaitMs)),
		rocketmq.WithSimpleSubscriptionExpressions(with.filters()),
	)
	if err != nil {
		return nil, err
	}
	if err := consumer.Start(); err != nil {
		return nil, err
	}
	return keep(consumer), nil
}

// simpleReceive has an empty list when the client says that there is no message, which it does by an error.
func simpleReceive(with arguments) (any, error) {
	consumer := held[rocketmq.SimpleConsumer](with.Handle)
	received, err := consumer.Receive(context.Background(), with.Max, milliseconds(with.InvisibleMs))
	if err != nil && code(err) != messageNotFound {
		return nil, err
	}
	views := []view{}
	for _, got := range received {
		made := shown(got)
		made.View = keep(got).Handle
		views = append(views, made)
	}
	return views, nil
}

func simpleAck(with arguments) (any, error) {
	consumer := held[rocketmq.SimpleConsumer](with.Handle)
	return nil, consumer.Ack(context.Background(), held[*rocketmq.MessageView](with.View))
}

func simpleChange(with arguments) (any, error) {
	consumer := held[rocketmq.SimpleConsumer](with.Handle)
	return nil, consumer.ChangeInvisibleDuration(held[*rocketmq.MessageView](with.View), milliseconds(with.InvisibleMs))
}

// ---- push

// listener keeps what comes, in the order of delivery, and fails each message so often.
type listener struct {
	received chan *rocketmq.MessageView
	failures int
	lock     sync.Mutex
	failed   map[string]int
}

type push struct {
	rocketmq.PushConsumer
	*listener
}

func newListener(failures int) *listener {
	return &listener{received: make(chan *rocketmq.MessageView, 100_000), failures: failures, failed: map[string]int{}}
}

func (heard *listener) consume(got *rocketmq.MessageView) rocketmq.ConsumerResult {
	heard.received <- got
	heard.lock.Lock()
	defer heard.lock.Unlock()
	heard.failed[got.GetMessageId()]++
	if heard.failed[got.GetMessageId()] <= heard.failures {
		return rocketmq.FAILURE
	}
	return rocketmq.SUCCESS
}

func (heard *listener) options() []rocketmq.PushConsumerOption {
	return []rocketmq.PushConsumerOption{
		rocketmq.WithPushAwaitDuration(5 * time.Second),
		rocketmq.WithPushConsumptionThreadCount(4),
		rocketmq.WithPushMaxCacheMessageCount(1024),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{Consume: heard.consume}),
	}
}

func pushStart(with arguments) (any, error) {
	heard := newListener(with.Failures)
	options := append(heard.options(), rocketmq.WithPushSubscriptionExpressions(with.filters()))
	consumer, err := rocketmq.NewPushConsumer(with.configuration(), options...)
	if err != nil {
		return nil, err
	}
	if err := consumer.Start(); err != nil {
		return nil, err
	}
	return keep(push{consumer, heard}), nil
}

func liteStart(with arguments) (any, error) {
	heard := newListener(with.Failures)
	lite := rocketmq.NewLitePushConsumerConfig(with.Topic, 30*time.Second)
	consumer, err := rocketmq.NewLitePushConsumer(with.configuration(), lite, heard.options()...)
	if err != nil {
		return nil, err
	}
	if err := consumer.Start(); err != nil {
		return nil, err
	}
	return keep(push{consumer, heard}), nil
}

func lite(with arguments) (rocketmq.LitePushConsumer, error) {
	consumer, ok := held[push](with.Handle).PushConsumer.(rocketmq.LitePushConsumer)
	if !ok {
		return nil, errors.New("not a consumer of lite topics")
	}
	return consumer, nil
}

func liteSubscribe(with arguments) (any, error) {
	consumer, err := lite(with)
	if err != nil {
		return nil, err
	}
	return nil, consumer.SubscribeLite(with.Topic)
}

func liteUnsubscribe(with arguments) (any, error) {
	consumer, err := lite(with)
	if err != nil {
		return nil, err
	}
	return nil, consumer.UnSubscribeLite(with.Topic)
}

// pushTake has so many messages, or what has come when the time is over.
func pushTake(with arguments) (any, error) {
	consumer := held[push](with.Handle)
	over := time.After(milliseconds(with.TimeoutMs))
	views := []view{}
	for len(views) < with.Count {
		select {
		case got := <-consumer.received:
			views = append(views, shown(got))
		case <-over:
			return views, nil
		}
	}
	return views, nil
}
