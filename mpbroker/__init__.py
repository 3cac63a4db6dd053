"""mpbroker: a publish-subscribe message broker for the processes of one host.

MessageBroker serves the threads of this process; BrokerManager starts a broker process and connect() finds one that
runs. All of them have the same verbs, those of BrokerAPI and SubscriptionAPI.
"""

import logging

from mpbroker._version import __version__
from mpbroker.api import BrokerAPI, SubscriptionAPI
from mpbroker.deliveries import Delivery
from mpbroker.errors import (
    AccessRefused,
    BrokerFailed,
    BrokerFull,
    BrokerGone,
    BrokerNotFound,
    CallFailed,
    ExecutorBroken,
    HandlerError,
    HeadersTooLarge,
    InsecureFolder,
    InvalidFilter,
    InvalidName,
    LimitReached,
    MpbrokerError,
    NameTaken,
    PayloadError,
    PayloadTooLarge,
    PoolEnded,
    ProtocolViolation,
    QueueFull,
    SubscriptionBusy,
    SubscriptionConflict,
    TopicExists,
    TransportUnavailable,
    UnknownSubscription,
    UnknownTopic,
    VersionMismatch,
    WorkerDied,
)
from mpbroker.local import MessageBroker, Subscription
from mpbroker.messages import (
    Attempt,
    AttemptOutcome,
    DeadLetter,
    DeadLetterReason,
    Message,
    MessagePriority,
    SubscriptionStats,
    TopicStats,
    Undecoded,
)
from mpbroker.overflow import Overflow, WaitForRoom
from mpbroker.pipeline import Consumer, Publisher, Receipt
from mpbroker.process.handle import SubscriptionHandle
from mpbroker.process.manager import BrokerManager, connect
from mpbroker.process.proxy import BrokerProxy
from mpbroker.push.subscriber import CallbackSubscriber, DedupingSubscriber, Subscriber
from mpbroker.retry import RetryPolicy
from mpbroker.workers import (
    AckPolicy,
    App,
    Death,
    Executor,
    PoolStats,
    Reject,
    Retry,
    Work,
    WorkerPool,
    WorkerStats,
    current_work,
)

logging.getLogger("mpbroker").addHandler(logging.NullHandler())

__all__ = [
    "AccessRefused",
    "AckPolicy",
    "App",
    "Attempt",
    "AttemptOutcome",
    "BrokerAPI",
    "BrokerFailed",
    "BrokerFull",
    "BrokerGone",
    "BrokerManager",
    "BrokerNotFound",
    "BrokerProxy",
    "CallFailed",
    "CallbackSubscriber",
    "Consumer",
    "DeadLetter",
    "DeadLetterReason",
    "Death",
    "DedupingSubscriber",
    "Delivery",
    "Executor",
    "ExecutorBroken",
    "HandlerError",
    "HeadersTooLarge",
    "InsecureFolder",
    "InvalidFilter",
    "InvalidName",
    "LimitReached",
    "Message",
    "MessageBroker",
    "MessagePriority",
    "MpbrokerError",
    "NameTaken",
    "Overflow",
    "PayloadError",
    "PayloadTooLarge",
    "PoolEnded",
    "PoolStats",
    "ProtocolViolation",
    "Publisher",
    "QueueFull",
    "Receipt",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Subscriber",
    "Subscription",
    "SubscriptionAPI",
    "SubscriptionBusy",
    "SubscriptionConflict",
    "SubscriptionHandle",
    "SubscriptionStats",
    "TopicExists",
    "TopicStats",
    "TransportUnavailable",
    "Undecoded",
    "UnknownSubscription",
    "UnknownTopic",
    "VersionMismatch",
    "WaitForRoom",
    "Work",
    "WorkerDied",
    "WorkerPool",
    "WorkerStats",
    "__version__",
    "connect",
    "current_work",
]
