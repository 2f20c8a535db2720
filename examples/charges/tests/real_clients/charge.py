"""Charges a card with Stripe's SDK, and prints the charge as JSON.

charge.py BASE_URL SOURCE [KEY]

Without a key the SDK makes its own and sends it again by its own rules. It gives up when an answer breaks off in
its body, so with a key this program calls it again, as an application would.
"""

import json
import sys
import time

import stripe

base, source = sys.argv[1:3]
key = sys.argv[3] if len(sys.argv) > 3 else None
stripe.api_key = "sk_test_acme"
stripe.api_base = base
stripe.max_network_retries = 8
stripe.default_http_client = stripe.RequestsClient(timeout=2)


def charge():
    order = dict(amount=2500, currency="eur", source=source, description="two words")
    if key is None:
        return stripe.Charge.create(**order)
    for _ in range(50):
        try:
            return stripe.Charge.create(**order, idempotency_key=key)
        except (stripe.APIConnectionError, stripe.APIError) as error:
            print(repr(error), file=sys.stderr)
            time.sleep(0.2)
    raise SystemExit("no answer")


made = charge()
print(json.dumps({"id": made.id, "object": made.object, "amount": made.amount}))
