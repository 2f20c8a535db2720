use std::time::Duration;

use thiserror::Error;

use crate::record::{Contract, Terms};
use crate::time::{Span, SpanTooLong};

/// How one operation is run: its lease, how long its answer is kept, and what happens when nobody knows
/// whether it was done.
///
/// | setting | default | meaning |
/// |---|---|---|
/// | lease | 90 s | how long an owner that is not heard of keeps the key; longer than the p99 of the handler |
/// | retention | 24 h | how long a finished record replays, from when it finished; Stripe keeps keys as long |
/// | heartbeat | lease / 3 | how often a running handler renews its lease; zero for never |
/// | heartbeat ceiling | 1 h | after which a handler is no longer renewed, so that a hung one does not wedge its key |
/// | contract | [`Contract::Reclaim`] | what may happen when a lease runs out |
/// | reclaim window | 20 h | how long after a side effect may first have existed the work may be run again |
/// | maximum of reclaims | 10 | how often that may happen |
/// | provider memory | 24 h | how long the provider remembers the key that is derived for it |
/// | response limit | 256 KiB | up to what size a body is kept; a larger one is omitted, and the work is done all the same |
/// | store timeout | 10 s | how long a caller waits for its outcome to be stored; storing itself goes on |
/// | on busy | [`OnBusy::Reject`] | what a second sender gets while the first is running |
///
/// The window and the last attempt that begins in it must end before the provider has forgotten the key, or
/// the last attempt would charge again. Building a policy checks that.
///
/// ```
/// use std::time::Duration;
/// use idem_core::Policy;
///
/// let policy = Policy::builder().lease(Duration::from_secs(30)).build()?;
/// assert_eq!(policy.heartbeat().as_duration(), Duration::from_secs(10));
///
/// let forgetful = Policy::builder().provider_memory(Duration::from_secs(3600)).build();
/// assert!(forgetful.is_err());
/// # Ok::<(), idem_core::InvalidPolicy>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    lease: Span,
    heartbeat: Span,
    heartbeat_ceiling: Span,
    provider_memory: Span,
    terms: Terms,
    response_limit: usize,
    store_timeout: Span,
    on_busy: OnBusy,
}

/// What a second sender gets while the first one's request is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBusy {
    /// The answer that it is running, at once.
    Reject,
    /// The first one's answer, if it comes within this time; else the answer that it is running.
    Wait(Span),
}

impl Default for Policy {
    fn default() -> Self {
        let lease = Span::from_secs(90);
        Self {
            lease,
            heartbeat: Span::from_secs(30),
            heartbeat_ceiling: HOUR,
            provider_memory: Span::from_secs(24 * 3600),
            terms: Terms {
                contract: Contract::Reclaim,
                retention: Span::from_secs(24 * 3600),
                reclaim_window: Span::from_secs(20 * 3600),
                max_reclaims: 10,
            },
            response_limit: 256 * 1024,
            store_timeout: Span::from_secs(10),
            on_busy: OnBusy::Reject,
        }
    }
}

const HOUR: Span = Span::from_secs(3600);

impl Policy {
    /// A builder that starts from the defaults.
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder {
            policy: Self::default(),
            heartbeat: None,
            too_long: None,
        }
    }

    /// How long an owner that is not heard of keeps the key.
    #[must_use]
    pub fn lease(&self) -> Span {
        self.lease
    }

    /// How often a running handler renews its lease; zero for never.
    #[must_use]
    pub fn heartbeat(&self) -> Span {
        self.heartbeat
    }

    /// For how long a running handler is renewed.
    #[must_use]
    pub fn heartbeat_ceiling(&self) -> Span {
        self.heartbeat_ceiling
    }

    /// How long the provider remembers the key that is derived for it.
    #[must_use]
    pub fn provider_memory(&self) -> Span {
        self.provider_memory
    }

    /// What is stored with the record.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// Up to what size a response body is kept, in bytes.
    #[must_use]
    pub fn response_limit(&self) -> usize {
        self.response_limit
    }

    /// How long a caller waits for its outcome to be stored.
    #[must_use]
    pub fn store_timeout(&self) -> Span {
        self.store_timeout
    }

    /// What a second sender gets while the first one's request is running.
    #[must_use]
    pub fn on_busy(&self) -> OnBusy {
        self.on_busy
    }
}

/// Builds a [`Policy`].
#[derive(Debug, Clone)]
#[must_use]
pub struct PolicyBuilder {
    policy: Policy,
    heartbeat: Option<Span>,
    too_long: Option<InvalidPolicy>,
}

impl PolicyBuilder {
    /// How long an owner that is not heard of keeps the key. Zero is over at once.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.policy.lease = self.span("lease", lease);
        self
    }

    /// How long a finished record replays. Zero makes the key a new request as soon as the work is done.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.policy.terms.retention = self.span("retention", retention);
        self
    }

    /// How often a running handler renews its lease. Zero for never; a third of the lease if this is not called.
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.heartbeat = Some(self.span("heartbeat", heartbeat));
        self
    }

    /// For how long a running handler is renewed.
    pub fn heartbeat_ceiling(mut self, ceiling: Duration) -> Self {
        self.policy.heartbeat_ceiling = self.span("heartbeat ceiling", ceiling);
        self
    }

    /// What may happen when a lease runs out.
    pub fn contract(mut self, contract: Contract) -> Self {
        self.policy.terms.contract = contract;
        self
    }

    /// How long after a side effect may first have existed the work may be run again.
    pub fn reclaim_window(mut self, window: Duration) -> Self {
        self.policy.terms.reclaim_window = self.span("reclaim window", window);
        self
    }

    /// How often work may be run again that may have had an effect.
    pub fn max_reclaims(mut self, reclaims: u32) -> Self {
        self.policy.terms.max_reclaims = reclaims;
        self
    }

    /// How long the provider remembers a key.
    pub fn provider_memory(mut self, memory: Duration) -> Self {
        self.policy.provider_memory = self.span("provider memory", memory);
        self
    }

    /// Up to what size a response body is kept, in bytes. A larger one is omitted.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.policy.response_limit = bytes;
        self
    }

    /// How long a caller waits for its outcome to be stored. Storing goes on after that; the caller is told that
    /// it is not done yet.
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.policy.store_timeout = self.span("store timeout", timeout);
        self
    }

    /// Whether a second sender waits, and how long at most.
    pub fn on_busy(mut self, on_busy: OnBusy) -> Self {
        self.policy.on_busy = on_busy;
        self
    }

    /// The policy.
    ///
    /// # Errors
    ///
    /// [`InvalidPolicy`] when a duration is too long to be added to a timestamp, when the heartbeat is not
    /// shorter than the lease, or when the provider would have forgotten its key before the last attempt that
    /// the policy allows is over.
    pub fn build(self) -> Result<Policy, InvalidPolicy> {
        if let Some(error) = self.too_long {
            return Err(error);
        }
        let mut policy = self.policy;
        policy.heartbeat = match self.heartbeat {
            Some(heartbeat) => heartbeat,
            None => Span::from_micros_clamped(policy.lease.as_micros() / 3),
        };
        if !policy.heartbeat.is_zero() && policy.heartbeat >= policy.lease {
            return Err(InvalidPolicy::HeartbeatTooSlow {
                heartbeat: policy.heartbeat.as_duration(),
                lease: policy.lease.as_duration(),
            });
        }
        // An attempt that begins at the very end of the window may live on for a whole ceiling, or for its
        // first lease if that is longer.
        let longest_attempt = policy.heartbeat_ceiling.max(policy.lease);
        let last_effect = policy.terms.reclaim_window.saturating_add(longest_attempt);
        if last_effect > policy.provider_memory {
            return Err(InvalidPolicy::ProviderForgets {
                last_effect: last_effect.as_duration(),
                memory: policy.provider_memory.as_duration(),
            });
        }
        Ok(policy)
    }

    fn span(&mut self, setting: &'static str, duration: Duration) -> Span {
        Span::new(duration).unwrap_or_else(|source| {
            self.too_long = Some(InvalidPolicy::TooLong { setting, source });
            Span::MAX
        })
    }
}

/// Why a [`Policy`] cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidPolicy {
    /// A duration is too long.
    #[error("the {setting} is too long")]
    TooLong {
        /// Which one.
        setting: &'static str,
        /// How long it is.
        source: SpanTooLong,
    },
    /// The lease would be over before it is renewed.
    #[error(
        "a heartbeat every {heartbeat:?} does not keep a lease of {lease:?} alive; make it shorter, or zero for none"
    )]
    HeartbeatTooSlow {
        /// How often the lease would be renewed.
        heartbeat: Duration,
        /// How long it is.
        lease: Duration,
    },
    /// The provider would have forgotten its key.
    #[error(
        "an attempt may still be running {last_effect:?} after the first one (the reclaim window and the longest attempt), \
         but the provider remembers its key for {memory:?} only: shorten the reclaim window, the heartbeat ceiling or the lease"
    )]
    ProviderForgets {
        /// When the last attempt is over at the latest, from when an effect may first have existed.
        last_effect: Duration,
        /// How long the provider remembers its key.
        memory: Duration,
    },
}
