//! The interface over TLS on loopback, as curl sees it.

use crate::rig::{Identity, PATIENCE, Rig, connector, key_and_request};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

impl Rig {
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The result of curl: status and body, or its failure.
    async fn curl(&self, arguments: &[&str]) -> Result<(u16, Value), String> {
        let address = self.server.address();
        let authority = self.write("trusted.pem", self.server.authority_pem());
        let mut command = std::process::Command::new("curl");
        command.args([
            "--silent",
            "--show-error",
            "--write-out",
            "\n%{http_code}",
            "--max-time",
            "30",
            "--cacert",
        ]);
        command.arg(authority);
        for argument in arguments {
            command.arg(argument.replace("URL", &format!("https://localhost:{}", address.port())));
        }
        let output = tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        Ok((
            status.parse().unwrap(),
            serde_json::from_str(body).unwrap_or_else(|_| body.into()),
        ))
    }

    async fn me(&self, identity: &Identity) -> Result<(u16, Value), String> {
        let certificate = self.write("node.crt", &identity.certificate);
        let key = self.write("node.key", &identity.key);
        self.curl(&[
            "--cert",
            certificate.to_str().unwrap(),
            "--key",
            key.to_str().unwrap(),
            "URL/v1/me",
        ])
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_alone_enrols_a_node_and_speaks_for_it() {
    let rig = Rig::new().await;
    let bearer = format!("Authorization: Bearer {}", rig.admin);
    let post = async |path: &str, body: Value| {
        let url = format!("URL{path}");
        rig.curl(&["--header", &bearer, "--json", &body.to_string(), &url])
            .await
            .unwrap()
    };
    assert_eq!(post("/v1/tenants", json!({ "name": "acme" })).await.0, 201);
    let (_, enrolment) = post("/v1/nodes/in/enrolment", json!({ "tenant": "acme" })).await;
    let (key, csr) = key_and_request();
    let (status, answer) = post(
        "/v1/enrol",
        json!({ "token": enrolment["token"], "csr": csr }),
    )
    .await;
    assert_eq!(status, 201);
    assert_eq!(answer["authority"], rig.server.authority_pem());
    let identity = Identity::of(&key, &answer);
    let (status, me) = rig.me(&identity).await.unwrap();
    assert_eq!((status, me["name"].as_str()), (200, Some("in")));
    for version in ["--http1.1", "--http2"] {
        assert_eq!(rig.curl(&[version, "URL/healthz"]).await.unwrap().0, 200);
    }
    assert_eq!(rig.delete("/v1/nodes/in/certificate").await.status, 204);
    assert_eq!(rig.me(&identity).await.unwrap().0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_does_not_get_through_the_handshake() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let genuine = rig.enrol("in").await;
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(rcgen::DnType::CommonName, "hawser authority");
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "in");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let forged = params
        .signed_by(&key, &Issuer::from_params(&authority, &authority_key))
        .unwrap();
    let identity = Identity {
        key: key.serialize_pem(),
        certificate: forged.pem(),
        ..genuine
    };
    rig.me(&identity).await.unwrap_err();
    // Obsolete TLS versions are rejected as well.
    rig.curl(&["--tls-max", "1.1", "URL/healthz"])
        .await
        .unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_slow_connections_do_not_stop_it_and_end_by_themselves() {
    let rig = Rig::with(|config| config.limits.request_timeout_s = 2).await;
    let address = rig.server.address();
    let mut slow = Vec::new();
    for number in 0..1000 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        if number % 2 == 0 {
            // The first bytes of a handshake that is never completed.
            socket
                .write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01])
                .await
                .unwrap();
        }
        slow.push(socket);
    }
    for _ in 0..5 {
        assert_eq!(rig.curl(&["URL/healthz"]).await.unwrap().0, 200);
    }
    let started = Instant::now();
    for socket in slow {
        let socket = socket.into_std().unwrap();
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        // An alert may precede the end of the stream.
        let ended = std::io::copy(&mut (&socket).take(1 << 16), &mut std::io::sink());
        assert!(
            !matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
            "{ended:?}"
        );
    }
    assert!(started.elapsed() < PATIENCE);
    // A connection is counted when it has been closed.
    let all = r#"refused_total{reason="slow_handshake"} 1000"#;
    loop {
        let metrics = rig.get("/metrics").await.body;
        if metrics.as_str().unwrap().contains(all) {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{metrics}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_do_not_arrive_and_connections_that_ask_nothing_are_ended() {
    let rig = Rig::with(|config| {
        config.limits.request_timeout_s = 1;
        config.limits.idle_timeout_s = 1;
    })
    .await;
    let bearer = format!("Authorization: Bearer {}", rig.admin);
    let announced = "Content-Length: 1000";
    let kind = "Content-Type: application/json";
    // curl sends the part of the body that it has and waits.
    for version in ["--http1.1", "--http2"] {
        let body = [
            "--header",
            &bearer,
            "--header",
            kind,
            "--header",
            announced,
            "--data",
            "{",
            version,
            "URL/v1/tenants",
        ];
        let slow = rig.curl(&body).await;
        assert!(matches!(&slow, Ok((408, _)) | Err(_)), "{slow:?}");
    }
    rig.until(async || {
        rig.get("/metrics")
            .await
            .body
            .as_str()
            .unwrap()
            .contains("hawser_controller_connections 0")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_other_end_does_not_read_is_cut() {
    let rig = Rig::with(|config| config.limits.unread_timeout_s = 1).await;
    let connections = async |count: u8| {
        let line = format!("hawser_controller_connections {count}");
        rig.until(async || {
            rig.get("/metrics")
                .await
                .body
                .as_str()
                .unwrap()
                .contains(&line)
        })
        .await;
    };
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let socket = socket.connect(rig.server.address()).await.unwrap();
    let tls = connector(rig.server.authority_pem(), b"http/1.1");
    let mut stream = tls
        .connect("localhost".try_into().unwrap(), socket)
        .await
        .unwrap();
    connections(1).await;
    // The responses exceed the kernel's buffers of both ends.
    let requests = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(300);
    stream.write_all(requests.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    connections(0).await;
    drop(stream);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_does_not_take_all_connections() {
    let rig = Rig::with(|config| config.limits.connections_per_address = 10).await;
    let mut sockets = Vec::new();
    for _ in 0..10 {
        sockets.push(TcpStream::connect(rig.server.address()).await.unwrap());
    }
    rig.until(async || {
        rig.get("/metrics")
            .await
            .body
            .as_str()
            .unwrap()
            .contains("hawser_controller_connections 10")
    })
    .await;
    rig.curl(&["URL/healthz"]).await.unwrap_err();
    drop(sockets);
    rig.until(async || rig.curl(&["URL/healthz"]).await.is_ok())
        .await;
}
