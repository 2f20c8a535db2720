use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A request of HTTP/1.1, byte for byte as it is written here.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    method: String,
    target: String,
    lines: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            lines: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(crate) fn post(target: &str, key: &str) -> Self {
        Self::new("POST", target).header("idempotency-key", key)
    }

    /// The usual one.
    pub(crate) fn charge(key: &str) -> Self {
        Self::post("/charges", key).json(r#"{"amount":1000}"#)
    }

    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.lines.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    pub(crate) fn json(self, body: &str) -> Self {
        self.header("content-type", "application/json").body(body)
    }

    pub(crate) fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    /// The request with a content length.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head();
        bytes.extend(format!("content-length: {}\r\n\r\n", self.body.len()).bytes());
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// The request in chunks of so many bytes.
    pub(crate) fn chunked(&self, size: usize) -> Vec<u8> {
        let mut bytes = self.head();
        bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
        for chunk in self.body.chunks(size) {
            bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        bytes
    }

    /// The request, of whose body only this is sent although its length says more.
    pub(crate) fn cut(&self, sent: usize) -> Vec<u8> {
        let mut bytes = self.bytes();
        bytes.truncate(bytes.len() - (self.body.len() - sent));
        bytes
    }

    pub(crate) async fn send(&self, address: SocketAddr) -> Reply {
        raw(address, &self.bytes()).await.expect("an answer")
    }

    /// Like [`Request::send`], for a task of its own.
    pub(crate) async fn send_owned(self, address: SocketAddr) -> Reply {
        self.send(address).await
    }

    fn head(&self) -> Vec<u8> {
        let mut bytes =
            format!("{} {} HTTP/1.1\r\nhost: test\r\n", self.method, self.target).into_bytes();
        bytes.extend_from_slice(b"connection: close\r\n");
        for (name, value) in &self.lines {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }
}

/// Sends bytes, and gives the connection.
pub(crate) async fn send_raw(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(bytes).await.unwrap();
    connection
}

/// Sends bytes, and reads what comes until the server closes the connection.
pub(crate) async fn raw(address: SocketAddr, bytes: &[u8]) -> Option<Reply> {
    let mut connection = send_raw(address, bytes).await;
    let mut answer = Vec::new();
    // A server that answers before it has read everything may reset the connection behind its answer.
    let reading = async {
        let mut buffer = [0; 16 * 1024];
        while let Ok(read @ 1..) = connection.read(&mut buffer).await {
            answer.extend_from_slice(&buffer[..read]);
        }
    };
    timeout(Duration::from_secs(20), reading)
        .await
        .expect("an end of the answer");
    Reply::parse(&answer)
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) lines: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// An answer of these bytes, if they begin with one.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let mut head = bytes[..end].split(|byte| *byte == b'\n');
        let status = std::str::from_utf8(head.next()?.get(9..12)?)
            .ok()?
            .parse()
            .ok()?;
        if status == 100 {
            return Self::parse(&bytes[end + 4..]);
        }
        let lines: Vec<(String, Vec<u8>)> = head
            .map(|line| {
                let colon = line.iter().position(|byte| *byte == b':').unwrap();
                let name = String::from_utf8(line[..colon].to_ascii_lowercase()).unwrap();
                (name, line[colon + 1..].trim_ascii().to_vec())
            })
            .collect();
        let mut reply = Self {
            status,
            lines,
            body: bytes[end + 4..].to_vec(),
        };
        if reply.text("transfer-encoding") == Some("chunked") {
            reply.body = unchunked(&reply.body);
        }
        Some(reply)
    }

    /// The value of the first line of a name, as text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let value = self.values(name).into_iter().next()?;
        std::str::from_utf8(value).ok()
    }

    pub(crate) fn values(&self, name: &str) -> Vec<&[u8]> {
        let of_name = self.lines.iter().filter(|(held, _)| held == name);
        of_name.map(|(_, value)| value.as_slice()).collect()
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.text("idempotent-replayed") == Some("true")
    }

    /// The last part of a problem's type; empty if it is none.
    pub(crate) fn problem(&self) -> String {
        if self.text("content-type") != Some("application/problem+json") {
            return String::new();
        }
        let json: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert!(
            json["title"].is_string() && json["detail"].is_string(),
            "{json}"
        );
        assert_eq!(json["status"], self.status, "{json}");
        let of_type = json["type"].as_str().unwrap();
        of_type
            .strip_prefix("urn:idem:problem:")
            .unwrap()
            .to_owned()
    }

    pub(crate) fn body_text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        let size = std::str::from_utf8(&bytes[..end]).unwrap().trim();
        let size = usize::from_str_radix(size, 16).unwrap();
        let data = &bytes[end + 1..];
        if size == 0 || data.len() < size {
            all.extend_from_slice(&data[..data.len().min(size)]);
            break;
        }
        all.extend_from_slice(&data[..size]);
        bytes = &data[size + 2..];
    }
    all
}
