"""The public verbs, once, for every kind of broker.

BrokerAPI and SubscriptionAPI check arguments, hold the documentation and drive push; what they stand on (an engine in
this process, or frames to a broker process) implements the underscored methods. So a broker in this process and one in
another take the same arguments, raise the same errors and mean the same. Imports the value modules and push.
"""

from mpbroker.api.broker import BrokerAPI
from mpbroker.api.subscription import SubscriptionAPI

__all__ = ["BrokerAPI", "SubscriptionAPI"]
