"""Values of messages: ``message.value`` of those that a consumer hands out, and bodies of those that a producer sends.

The registry is asked in a thread, never on an event loop; what the loop does with a message then needs no answer. Must
not know consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from mqspark.client.delivery.awaiting import awaited, is_coroutine_function
from mqspark.client.delivery.delivery import messages_of
from mqspark.client.typed.serializer import Serializer
from mqspark.errors import InvalidMessage, MQError
from mqspark.message import Message, MessageExt, ValueBody

ClusterName = Callable[[str], str]
"""A topic's name in the cluster, of that in the program."""


class TypedMessages:
    """The serializer of one client."""

    def __init__(self, serializer: Serializer, named: ClusterName) -> None:
        self._serializer = serializer
        self._named = named

    # --- of a producer ------------------------------------------------------------------------------------

    async def written(self, message: Message) -> Message:
        """The message with its value as its body. Raises what ``Serializer.write`` raises."""
        if not isinstance(message, Message) or not isinstance(message.body, ValueBody):
            return message
        topic = self._named(message.topic)
        if not self._serializer.can_write(topic):
            await asyncio.to_thread(self._serializer.learn_topic, topic)
        return self.written_here(message)

    async def all_written(self, messages: Sequence[Message]) -> Sequence[Message]:
        """As ``written``, of a batch."""
        if not isinstance(messages, list | tuple):
            return messages
        return [await self.written(message) for message in messages]

    def written_here(self, message: Message) -> Message:
        """As ``written``, in the thread that calls."""
        if not isinstance(message, Message) or not isinstance(message.body, ValueBody):
            return message
        body = self._serializer.write(self._named(message.topic), message.body.value)
        return Message(message.topic, body, properties=message.properties, flag=message.flag)

    # --- of a consumer ------------------------------------------------------------------------------------

    def heard(self, listener: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The listener, which gets messages with values: one, or a list."""
        if is_coroutine_function(listener):

            async def hear(argument: Any) -> Any:
                await self.give(messages_of(argument))
                return await awaited(listener(argument))

            return hear

        def hear_in_thread(argument: Any) -> Any:
            messages = messages_of(argument)
            self._learn([each for each in messages if not self._knows(each)])
            self._give(messages)
            return listener(argument)

        return hear_in_thread

    async def give(self, messages: Sequence[MessageExt]) -> None:
        """The messages have values from now on. Where the registry does not answer, ``value`` raises why."""
        if self.is_given(messages):
            return
        unknown = [each for each in messages if not self._knows(each)]
        if unknown:
            await asyncio.to_thread(self._learn, unknown)
        self._give(messages)

    @staticmethod
    def is_given(messages: Sequence[MessageExt]) -> bool:
        return hasattr(messages[-1], "decoder")

    def _give(self, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            if not hasattr(message, "decoder"):
                message.decoder = self._value_of

    def _value_of(self, message: MessageExt) -> Any:
        return self._serializer.read(self._named(message.topic), message.body)

    def _knows(self, message: MessageExt) -> bool:
        body = _body(message)
        return body is None or self._serializer.can_read(self._named(message.topic), body)

    def _learn(self, messages: Sequence[MessageExt]) -> None:
        """Asks the registry, until it does not answer."""
        for at, message in enumerate(messages):
            try:
                self._serializer.learn_body(self._named(message.topic), message.body)
            except MQError as error:
                for each in messages[at:]:
                    each.decoder = _raising(error)
                return


def _raising(error: MQError) -> Callable[[MessageExt], Any]:
    def decoder(_: MessageExt) -> Any:
        raise error

    return decoder


def _body(message: MessageExt) -> bytes | None:
    """None: it cannot be inflated, and ``value`` says so."""
    try:
        return message.body
    except InvalidMessage:
        return None
