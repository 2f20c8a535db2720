use axum::body::Body;
use axum::http::{Method, Request, header};
use serde_json::json;

/// A request of the story.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// Which operation it is for: what the provider finds as its description.
    pub(super) order: &'static str,
    /// The header's value, as it is sent.
    pub(super) key: &'static str,
    pub(super) customer: Customer,
    pub(super) what: What,
}

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Customer {
    Acme,
    Globex,
}

impl Customer {
    pub(super) fn token(self) -> &'static str {
        match self {
            Self::Acme => "sk_test_acme",
            Self::Globex => "sk_test_globex",
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Charge {
        amount: i64,
        source: &'static str,
        spelling: Spelling,
    },
    Refund {
        charge: String,
    },
}

/// How the same charge is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// As everybody would.
    Usual,
    /// With other white space, another order of members, and another spelling of the number.
    Odd,
}

impl Call {
    /// A charge for the first customer.
    pub(super) fn charge(
        order: &'static str,
        key: &'static str,
        amount: i64,
        source: &'static str,
    ) -> Self {
        Self {
            order,
            key,
            customer: Customer::Acme,
            what: What::Charge {
                amount,
                source,
                spelling: Spelling::Usual,
            },
        }
    }

    pub(super) fn path(&self) -> &'static str {
        match self.what {
            What::Charge { .. } => "/v1/charges",
            What::Refund { .. } => "/v1/refunds",
        }
    }

    /// What there is to know about it, beside its path.
    pub(super) fn about(&self) -> String {
        let what = match &self.what {
            What::Charge {
                amount,
                spelling: Spelling::Odd,
                ..
            } => format!("\"amount\": {amount}.0"),
            What::Charge { amount, source, .. } => format!("{}, {source}", euros(*amount)),
            What::Refund { charge } => format!("of {charge}"),
        };
        let who = match self.customer {
            Customer::Acme => "",
            Customer::Globex => "   Bearer sk_test_globex",
        };
        format!("{what:<26}Idempotency-Key: {}{who}", self.key)
    }

    /// The request, for the service at this address.
    pub(super) fn request(&self, service: &str) -> Result<Request<Body>, axum::http::Error> {
        let body = match &self.what {
            What::Charge {
                amount,
                source,
                spelling: Spelling::Usual,
            } => json!({
                "amount": amount, "currency": "eur", "source": source, "description": self.order,
            })
            .to_string(),
            What::Charge {
                amount,
                source,
                spelling: Spelling::Odd,
            } => format!(
                "{{ \"description\": \"{}\", \"source\": \"{source}\", \"currency\": \"eur\", \"amount\": {amount}.0 }}",
                self.order
            ),
            What::Refund { charge } => json!({ "charge": charge }).to_string(),
        };
        Request::builder()
            .method(Method::POST)
            .uri(format!("{service}{}", self.path()))
            .header(
                header::AUTHORIZATION,
                format!("Bearer {}", self.customer.token()),
            )
            .header(header::CONTENT_TYPE, "application/json")
            .header("idempotency-key", self.key)
            .body(Body::from(body))
    }
}

/// An amount in cents, as people write it.
fn euros(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    let cents = cents.unsigned_abs();
    format!("{sign}{}.{:02} EUR", cents / 100, cents % 100)
}
