//! Redis starts, ends, and comes back as it was told to.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use idem_test_servers::{AppendFsync, Redis, RedisBuilder, unless_missing};

fn start(builder: RedisBuilder) -> Option<Redis> {
    unless_missing(builder.start())
}

#[test]
fn it_answers_and_is_gone_with_its_value() {
    let Some(redis) = start(Redis::builder()) else {
        return;
    };
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
    assert_eq!(redis.cli(&["PING"]).unwrap(), "PONG");
    assert!(
        redis
            .cli(&["NONSENSE"])
            .unwrap_err()
            .to_string()
            .contains("unknown command")
    );
    let port = redis.port();
    drop(redis);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn it_does_not_run_as_root() {
    let Some(redis) = start(Redis::builder()) else {
        return;
    };
    let status = std::fs::read_to_string(format!("/proc/{}/status", redis.pid().unwrap())).unwrap();
    let ids = status
        .lines()
        .find(|line| line.starts_with("Uid:"))
        .unwrap();
    assert!(!ids.split_whitespace().any(|id| id == "0"), "{ids}");
}

#[test]
fn without_persistence_a_kill_forgets_everything() {
    let Some(mut redis) = start(Redis::builder()) else {
        return;
    };
    redis.cli(&["SET", "key", "value"]).unwrap();
    redis.kill().unwrap();
    redis.restart().unwrap();
    assert_eq!(redis.cli(&["EXISTS", "key"]).unwrap(), "0");
    redis.cli(&["SET", "key", "value"]).unwrap();
    redis.restart().unwrap();
    assert_eq!(redis.cli(&["EXISTS", "key"]).unwrap(), "0");
}

#[test]
fn with_an_append_only_file_a_kill_forgets_nothing() {
    let Some(mut redis) = start(Redis::builder().append_only(AppendFsync::Always)) else {
        return;
    };
    assert_eq!(
        redis.cli(&["CONFIG", "GET", "appendfsync"]).unwrap(),
        "appendfsync\nalways"
    );
    let url = redis.url();
    redis.cli(&["SET", "key", "value"]).unwrap();
    redis.kill().unwrap();
    assert!(redis.cli(&["PING"]).is_err());
    redis.restart().unwrap();
    assert_eq!(redis.url(), url);
    assert_eq!(redis.cli(&["GET", "key"]).unwrap(), "value");
}

#[test]
fn memory_is_bounded_by_a_policy() {
    let Some(redis) = start(Redis::builder().max_memory(3_000_000, "allkeys-lru")) else {
        return;
    };
    assert_eq!(
        redis.cli(&["CONFIG", "GET", "maxmemory"]).unwrap(),
        "maxmemory\n3000000"
    );
    assert_eq!(
        redis.cli(&["CONFIG", "GET", "maxmemory-policy"]).unwrap(),
        "maxmemory-policy\nallkeys-lru"
    );
}

#[test]
fn a_port_is_taken_again_and_never_shared() {
    let Some(first) = start(Redis::builder()) else {
        return;
    };
    let port = first.port();
    let refused = Redis::builder().port(port).start().unwrap_err();
    assert!(refused.to_string().contains("already in use"), "{refused}");
    drop(first);
    assert_eq!(start(Redis::builder().port(port)).unwrap().port(), port);
}

#[test]
fn a_replica_has_the_primarys_data_and_takes_no_writes() {
    let Some(primary) = start(Redis::builder()) else {
        return;
    };
    primary.cli(&["SET", "key", "value"]).unwrap();
    let replica = Redis::start_replica(&primary).unwrap();
    assert_eq!(replica.cli(&["GET", "key"]).unwrap(), "value");
    assert!(
        replica
            .cli(&["SET", "key", "other"])
            .unwrap_err()
            .to_string()
            .contains("READONLY")
    );
}

#[test]
fn a_paused_server_answers_when_it_is_resumed() {
    let Some(mut redis) = start(Redis::builder()) else {
        return;
    };
    redis.pause().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    let silence = stream.read_exact(&mut answer).unwrap_err();
    assert!(
        matches!(silence.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        "{silence}"
    );

    redis.resume().unwrap();
    stream.set_read_timeout(None).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[test]
fn a_cluster_of_one_node_has_every_slot_before_and_after_a_restart() {
    let Some(mut redis) = start(Redis::builder().cluster()) else {
        return;
    };
    for _ in 0..2 {
        // Keys of many slots, of which none is moved or unserved.
        for at in 0..20 {
            assert_eq!(
                redis.cli(&["SET", &format!("key-{at}"), "value"]).unwrap(),
                "OK"
            );
        }
        let slots = redis.cli(&["CLUSTER", "SLOTS"]).unwrap();
        let slots: Vec<_> = slots.lines().take(4).collect();
        assert_eq!(
            slots,
            ["0", "16383", "127.0.0.1", &redis.port().to_string()]
        );
        redis.kill().unwrap();
        redis.restart().unwrap();
    }
}

#[test]
fn with_tls_it_speaks_nothing_else_and_is_who_it_says() {
    let Some(redis) = start(Redis::builder().tls()) else {
        return;
    };
    assert_eq!(redis.url(), format!("rediss://127.0.0.1:{}", redis.port()));
    assert_eq!(redis.cli(&["PING"]).unwrap(), "PONG");

    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"+PONG"), "{answer:?}");

    let verifies = |authority: &std::path::Path| {
        let address = format!("127.0.0.1:{}", redis.port());
        let output = std::process::Command::new("openssl")
            .args([
                "s_client",
                "-connect",
                &address,
                "-verify_ip",
                "127.0.0.1",
                "-verify_return_error",
                "-CAfile",
            ])
            .arg(authority)
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        output.status.success()
    };
    assert!(verifies(redis.certificate_authority().unwrap()));
    let Some(other) = start(Redis::builder().tls()) else {
        return;
    };
    assert!(
        !verifies(other.certificate_authority().unwrap()),
        "anybody's certificate will do"
    );
}
