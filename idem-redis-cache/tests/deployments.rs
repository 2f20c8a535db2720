//! Redis as a cluster, and behind TLS.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use idem_core::{ClaimOutcome, KeyStore as _};
use idem_redis_cache::redis::cluster::ClusterClient;
use idem_redis_cache::redis::{Client, TlsCertificates};
use idem_test_servers::{Redis, unless_missing};
use support::{Cache, Counting, claim, finish, is_refused, options, until};

/// Many keys, so that every slot has a turn.
async fn works(cache: &Cache) {
    for number in 0..50 {
        let key = format!("k-{number}");
        let owner = claim(&key);
        let won = cache.claim(&owner).await;
        assert!(matches!(won, Ok(ClaimOutcome::Won(_))), "{won:?}");
        until("a refusal by Redis", async || {
            is_refused(&cache.claim(&claim(&key)).await, &owner)
        })
        .await;
        finish(cache, &owner).await;
        until("a removal", async || cache.stats().removed == number + 1).await;
    }
    let stats = cache.stats();
    assert_eq!(
        (stats.errors, stats.odd, stats.opened),
        (0, 0, 0),
        "{stats:?}"
    );
}

#[tokio::test]
async fn a_cluster() {
    let Some(server) = unless_missing(Redis::builder().cluster().start()) else {
        return;
    };
    let client = ClusterClient::new(vec![server.url()]).unwrap();
    let connection = client.get_async_connection().await.unwrap();
    let cache = options().over(Counting::new(), connection).unwrap();
    assert!(cache.ready(Duration::from_secs(10)).await);
    works(&cache).await;
}

#[tokio::test]
async fn tls_with_a_private_authority() {
    let Some(server) = unless_missing(Redis::builder().tls().start()) else {
        return;
    };
    // Another test of this process may have chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let authority = std::fs::read(server.certificate_authority().unwrap()).unwrap();
    let certificates = TlsCertificates {
        client_tls: None,
        root_cert: Some(authority),
    };
    let client = Client::build_with_tls(server.url(), certificates).unwrap();
    let cache = options().open_client(Counting::new(), client).unwrap();
    assert!(cache.ready(Duration::from_secs(10)).await);
    works(&cache).await;

    // Whoever does not trust that authority goes without the cache.
    let store = Counting::new();
    let distrustful = support::cache(&store, &server.url());
    assert!(!distrustful.ready(Duration::from_millis(500)).await);
    assert!(distrustful.claim(&claim("k-1")).await.is_ok());
}
