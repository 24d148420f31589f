package main

import (
	"context"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func adminStart(with arguments) (any, error) {
	made, err := admin.NewAdmin(
		admin.WithResolver(primitive.NewPassthroughResolver(strings.Split(with.Namesrv, ";"))),
		admin.WithNamespace(with.Namespace),
	)
	if err != nil {
		return nil, err
	}
	return keep(made), nil
}

func adminCreateTopic(with arguments) (any, error) {
	return nil, held[admin.Admin](with).CreateTopic(
		context.Background(), admin.WithTopicCreate(with.Topic), admin.WithBrokerAddrCreate(with.Broker),
		admin.WithReadQueueNums(with.Queues), admin.WithWriteQueueNums(with.Queues),
	)
}

func adminDeleteTopic(with arguments) (any, error) {
	return nil, held[admin.Admin](with).DeleteTopic(
		context.Background(), admin.WithTopicDelete(with.Topic), admin.WithBrokerAddrDelete(with.Broker),
	)
}

func adminTopics(with arguments) (any, error) {
	found, err := held[admin.Admin](with).FetchAllTopicList(context.Background())
	if err != nil {
		return nil, err
	}
	return found.TopicList, nil
}

func adminQueues(with arguments) (any, error) {
	found, err := held[admin.Admin](with).FetchPublishMessageQueues(context.Background(), with.Topic)
	if err != nil {
		return nil, err
	}
	return found, nil
}

func adminGroups(with arguments) (any, error) {
	found, err := held[admin.Admin](with).GetAllSubscriptionGroup(context.Background(), with.Broker, 10*time.Second)
	if err != nil {
		return nil, err
	}
	return found.SubscriptionGroupTable, nil
}
