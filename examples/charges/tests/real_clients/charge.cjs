// Charges a card with Stripe's SDK, and prints the charge as JSON.
//
// charge.cjs BASE_URL SOURCE [KEY]
//
// Without a key the SDK makes its own and sends it again by its own rules. It gives up when an answer breaks off in
// its body, so with a key this program calls it again, as an application would.

const Stripe = require("stripe");

const [base, source, key] = process.argv.slice(2);
const { hostname, port } = new URL(base);
const stripe = new Stripe("sk_test_acme", {
    host: hostname,
    port,
    protocol: "http",
    maxNetworkRetries: 8,
    timeout: 2000,
});

async function charge() {
    const order = { amount: 2500, currency: "eur", source, description: "two words" };
    if (key === undefined) {
        return stripe.charges.create(order);
    }
    for (let call = 0; call < 50; call++) {
        try {
            return await stripe.charges.create(order, { idempotencyKey: key });
        } catch (error) {
            console.error(error);
            await new Promise((resolve) => setTimeout(resolve, 200));
        }
    }
    throw new Error("no answer");
}

charge()
    .then(({ id, object, amount }) => console.log(JSON.stringify({ id, object, amount })))
    .catch((error) => {
        console.error(error);
        process.exitCode = 1;
    });
