package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var places = map[string]consumer.ConsumeFromWhere{
	"CONSUME_FROM_LAST_OFFSET":  consumer.ConsumeFromLastOffset,
	"CONSUME_FROM_FIRST_OFFSET": consumer.ConsumeFromFirstOffset,
	"CONSUME_FROM_TIMESTAMP":    consumer.ConsumeFromTimestamp,
}

func consumerOptions(with arguments) []consumer.Option {
	chosen := []consumer.Option{
		consumer.WithNameServer(strings.Split(with.Namesrv, ";")),
		consumer.WithGroupName(with.Group),
		consumer.WithInstance(instance()),
		consumer.WithNamespace(with.Namespace),
		consumer.WithConsumeFromWhere(places[with.From]),
		consumer.WithPullBatchSize(32),
	}
	if with.Model == "BROADCASTING" {
		chosen = append(chosen, consumer.WithConsumerModel(consumer.BroadCasting))
	} else {
		chosen = append(chosen, consumer.WithConsumerModel(consumer.Clustering))
	}
	if with.Timestamp != "" {
		chosen = append(chosen, consumer.WithConsumeTimestamp(with.Timestamp))
	}
	if with.Orderly {
		chosen = append(chosen, consumer.WithConsumerOrder(true), consumer.WithRebalanceLockInterval(2*time.Second))
	}
	if with.MaxReconsume != 0 {
		chosen = append(chosen, consumer.WithMaxReconsumeTimes(with.MaxReconsume))
	}
	if with.Batch > 0 {
		chosen = append(chosen, consumer.WithConsumeMessageBatchMaxSize(with.Batch))
	}
	switch with.Strategy {
	case "AVG_BY_CIRCLE":
		chosen = append(chosen, consumer.WithStrategy(consumer.AllocateByAveragelyCircle))
	case "CONSISTENT_HASH":
		chosen = append(chosen, consumer.WithStrategy(consumer.AllocateByConsistentHash(10)))
	}
	if with.Hooks {
		chosen = append(chosen, consumer.WithInterceptor(interceptor(with.Group)))
	}
	if with.TraceTopic != "" {
		chosen = append(chosen, consumer.WithTrace(traceOf(with)))
	}
	if with.AccessKey != "" {
		chosen = append(chosen, consumer.WithCredentials(with.credentials()))
	}
	if with.TLS {
		chosen = append(chosen, tlsConsumer())
	}
	return chosen
}

func selector(with arguments) consumer.MessageSelector {
	if with.SQL != "" {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: with.SQL}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: with.Expression}
}

// ---- push

// push is a consumer and what its listener was given, in the order of delivery.
type push struct {
	rocketmq.PushConsumer
	received chan *primitive.MessageExt
	replies  rocketmq.Producer
}

// pushStart subscribes to the topics. A message's property `failures` says how often its listener fails; an echo
// answers requests.
func pushStart(with arguments) (any, error) {
	made, err := rocketmq.NewPushConsumer(consumerOptions(with)...)
	if err != nil {
		return nil, err
	}
	kept := &push{PushConsumer: made, received: make(chan *primitive.MessageExt, 1<<20)}
	if with.Echo {
		kept.replies, err = rocketmq.NewProducer(producerOptions(arguments{Namesrv: with.Namesrv, Group: with.Group + "-replies"})...)
		if err != nil {
			return nil, err
		}
		if err := kept.replies.Start(); err != nil {
			return nil, err
		}
	}
	listen := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		failing := false
		for _, one := range messages {
			kept.received <- one
			failures, err := strconv.Atoi(one.GetProperty("failures"))
			failing = failing || err == nil && int(one.ReconsumeTimes) < failures
			if with.Echo {
				if err := kept.answer(one); err != nil {
					return consumer.ConsumeRetryLater, err
				}
			}
		}
		if !failing {
			return consumer.ConsumeSuccess, nil
		}
		if with.Orderly {
			if place, ok := primitive.GetOrderlyCtx(ctx); ok {
				place.SuspendCurrentQueueTimeMillis = 10
			}
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		if place, ok := primitive.GetConcurrentlyCtx(ctx); ok {
			place.DelayLevelWhenNextConsume = with.DelayLevel
		}
		return consumer.ConsumeRetryLater, nil
	}
	for _, topic := range with.Topics {
		if err := made.Subscribe(topic, selector(with), listen); err != nil {
			return nil, err
		}
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	return keep(kept), nil
}

func (kept *push) answer(asked *primitive.MessageExt) error {
	reply, err := consumer.CreateReplyMessage(asked, nil)
	if err != nil {
		return err
	}
	reply.Body = append([]byte("re: "), asked.Body...)
	_, err = kept.replies.SendSync(context.Background(), reply)
	return err
}

func pushTake(with arguments) (any, error) {
	kept := held[*push](with)
	over := time.After(with.timeout())
	taken := []received{}
	for len(taken) < with.Count {
		select {
		case one := <-kept.received:
			taken = append(taken, shown(one))
		case <-over:
			return taken, nil
		}
	}
	return taken, nil
}

func pushSuspend(with arguments) (any, error) {
	held[*push](with).Suspend()
	return nil, nil
}

func pushResume(with arguments) (any, error) {
	held[*push](with).Resume()
	return nil, nil
}

func pushLag(with arguments) (any, error) {
	return held[*push](with).GetOffsetDiffMap(), nil
}

// ---- pull

func pullStart(with arguments) (any, error) {
	made, err := rocketmq.NewPullConsumer(consumerOptions(with)...)
	if err != nil {
		return nil, err
	}
	if err := made.Subscribe(with.Topic, selector(with)); err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	return keep(made), nil
}

type pulled struct {
	Status   int        `json:"status"`
	Next     int64      `json:"next"`
	Min      int64      `json:"min"`
	Max      int64      `json:"max"`
	Messages []received `json:"messages"`
}

func results(got *primitive.PullResult, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return pulled{int(got.Status), got.NextBeginOffset, got.MinOffset, got.MaxOffset, allShown(got.GetMessageExts())}, nil
}

// pullPull takes the next queue's messages from where the group is.
func pullPull(with arguments) (any, error) {
	return results(held[rocketmq.PullConsumer](with).Pull(context.Background(), with.Count))
}

func queueOf(with arguments) *primitive.MessageQueue {
	return &primitive.MessageQueue{Topic: with.Topic, BrokerName: with.BrokerName, QueueId: with.QueueID}
}

func pullFrom(with arguments) (any, error) {
	return results(held[rocketmq.PullConsumer](with).PullFrom(context.Background(), queueOf(with), with.Offset, with.Count))
}

// pullPoll takes and acknowledges what came within the time.
func pullPoll(with arguments) (any, error) {
	from := held[rocketmq.PullConsumer](with)
	over := time.Now().Add(with.timeout())
	taken := []received{}
	for len(taken) < with.Count && time.Now().Before(over) {
		got, err := from.Poll(context.Background(), 200*time.Millisecond)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		taken = append(taken, allShown(got.GetMsgList())...)
		from.ACK(context.Background(), got, consumer.ConsumeSuccess)
	}
	return taken, nil
}

func pullUpdateOffset(with arguments) (any, error) {
	from := held[rocketmq.PullConsumer](with)
	if err := from.UpdateOffset(queueOf(with), with.Offset); err != nil {
		return nil, err
	}
	return nil, from.PersistOffset(context.Background(), with.Topic)
}

func pullCurrentOffset(with arguments) (any, error) {
	offset, err := held[rocketmq.PullConsumer](with).CurrentOffset(queueOf(with))
	if err != nil {
		return nil, fmt.Errorf("no offset: %w", err)
	}
	return offset, nil
}
