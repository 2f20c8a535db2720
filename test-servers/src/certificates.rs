//! Certificates for servers on 127.0.0.1, made by the program `openssl`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An authority and a certificate of its for 127.0.0.1 and localhost. They are apart, since some clients take no
/// authority for a server.
const CONFIGURATION: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = replaced
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
subjectAltName = IP:127.0.0.1, DNS:localhost
extendedKeyUsage = serverAuth
";

/// Where they are, as PEM.
#[derive(Clone, Debug)]
pub(crate) struct Certificates {
    pub(crate) authority: PathBuf,
    pub(crate) server: PathBuf,
    pub(crate) server_key: PathBuf,
}

impl Certificates {
    pub(crate) fn make(openssl: &Path, directory: &Path) -> io::Result<Self> {
        let configuration = directory.join("certificates.cnf");
        fs::write(&configuration, CONFIGURATION)?;
        let made = Self {
            authority: directory.join("authority.pem"),
            server: directory.join("server.pem"),
            server_key: directory.join("server.key"),
        };
        let authority_key = directory.join("authority.key");
        let request = |section: &str, certificate: &Path, key: &Path| {
            let mut command = Command::new(openssl);
            command.args([
                "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-sha256", "-days", "30",
            ]);
            command.args([
                "-extensions",
                section,
                "-subj",
                &format!("/CN=idem test {section}"),
            ]);
            command
                .arg("-config")
                .arg(&configuration)
                .arg("-out")
                .arg(certificate)
                .arg("-keyout")
                .arg(key);
            command
        };
        run(request("authority", &made.authority, &authority_key))?;
        let mut server = request("server", &made.server, &made.server_key);
        server
            .arg("-CA")
            .arg(&made.authority)
            .arg("-CAkey")
            .arg(&authority_key);
        run(server)?;
        Ok(made)
    }
}

fn run(mut command: Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("openssl: {}", said.trim())))
    }
}
