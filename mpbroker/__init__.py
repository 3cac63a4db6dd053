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
    ArenaFull,
    BrokerFailed,
    BrokerFull,
    BrokerGone,
    BrokerNotFound,
    CallFailed,
    HeadersTooLarge,
    InsecureFolder,
    InvalidFilter,
    InvalidName,
    LimitReached,
    MpbrokerError,
    NameTaken,
    PayloadError,
    PayloadTooLarge,
    ProtocolViolation,
    QueueFull,
    SubscriptionBusy,
    SubscriptionConflict,
    TopicExists,
    TransportUnavailable,
    UnknownSubscription,
    UnknownTopic,
    VersionMismatch,
)
from mpbroker.loans import Loan
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

logging.getLogger("mpbroker").addHandler(logging.NullHandler())

__all__ = [
    "AccessRefused",
    "ArenaFull",
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
    "DedupingSubscriber",
    "Delivery",
    "HeadersTooLarge",
    "InsecureFolder",
    "InvalidFilter",
    "InvalidName",
    "LimitReached",
    "Loan",
    "Message",
    "MessageBroker",
    "MessagePriority",
    "MpbrokerError",
    "NameTaken",
    "Overflow",
    "PayloadError",
    "PayloadTooLarge",
    "ProtocolViolation",
    "Publisher",
    "QueueFull",
    "Receipt",
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
    "__version__",
    "connect",
]
