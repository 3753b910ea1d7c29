//! The interface over TLS on loopback, as curl sees it.

use crate::rig::{Identity, Rig, TIMEOUT, connector, key_and_request};
use hawser_client::{NodeClient, OperatorClient};
use hawser_controller::TlsConfig;
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
            "60",
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

/// curl 7.88 takes the end of a stream that it still sends on for a failure, even with a complete response.
#[tokio::test(flavor = "multi_thread")]
async fn curl_sees_the_refusal_of_a_body_that_is_not_read() {
    let rig = Rig::new().await;
    let header = format!("Authorization: Bearer {}", rig.admin);
    for (status, bytes, path, header) in [
        (401, 2_000, "/v1/flows", "X-None: 1"),
        (401, 200_000, "/v1/flows", "X-None: 1"),
        (404, 200_000, "/v1/nothing", &header),
        (405, 200_000, "/v1/version", &header),
        (413, 900_000, "/v1/flows", &header),
        (413, 100_000, "/v1/enrol", "X-None: 1"),
    ] {
        let body = rig.write("body", &"x".repeat(bytes));
        let body = format!("@{}", body.display());
        let url = format!("URL{path}");
        for version in ["--http1.1", "--http2"] {
            let kind = "Content-Type: application/json";
            let request = [
                version,
                "--header",
                header,
                "--header",
                kind,
                "--data-binary",
                &body,
                &url,
            ];
            for _ in 0..4 {
                let seen = rig.curl(&request).await;
                assert_eq!(
                    seen.map(|seen| seen.0),
                    Ok(status),
                    "{version} {path} {bytes}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_authoritys_certificate_fails_the_handshake() {
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
async fn a_thousand_slow_connections_end_by_themselves() {
    // Longer than a handshake of others takes on a busy machine.
    let rig = Rig::with(|config| config.limits.request_timeout_s = 10).await;
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
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        // An alert may precede the end of the stream.
        let ended = std::io::copy(&mut (&socket).take(1 << 16), &mut std::io::sink());
        assert!(
            !matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
            "{ended:?}"
        );
    }
    assert!(started.elapsed() < TIMEOUT);
    // A connection is counted when it has been closed.
    let all = r#"refused_total{reason="slow_handshake"} 1000"#;
    loop {
        let metrics = rig.get("/metrics").await.body;
        if metrics.as_str().unwrap().contains(all) {
            break;
        }
        assert!(started.elapsed() < TIMEOUT, "{metrics}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_requests_and_idle_connections_are_ended() {
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

/// An authority of browsers.
struct Outside {
    params: CertificateParams,
    key: KeyPair,
}

impl Outside {
    fn new() -> Outside {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "an authority of browsers");
        Outside { params, key }
    }

    fn pem(&self) -> String {
        self.params.self_signed(&self.key).unwrap().pem()
    }

    /// Writes a certificate for the names, and its key.
    fn issue(&self, names: &[&str], files: &TlsConfig) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
    }
}

/// Returns whether a client that trusts only this authority, and does not name it, gets a certificate
/// of it under a name.
async fn is_served(rig: &Rig, authority: &str, name: &'static str) -> bool {
    let socket = TcpStream::connect(rig.server.address()).await.unwrap();
    let connected = connector(authority, b"http/1.1").connect(name.try_into().unwrap(), socket);
    connected.await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_get_the_outside_certificate_and_nodes_our_own() {
    let outside = Outside::new();
    let folder = tempfile::tempdir().unwrap();
    let files = TlsConfig {
        certificate: folder.path().join("console.pem"),
        key: folder.path().join("console.key"),
    };
    outside.issue(&["console.example", "localhost"], &files);
    let rig = Rig::with(|config| {
        config.names = vec!["node.example".to_owned()];
        config.tls = Some(files.clone());
    })
    .await;
    let own = rig.server.authority_pem().to_owned();
    assert!(is_served(&rig, &outside.pem(), "console.example").await);
    assert!(!is_served(&rig, &outside.pem(), "node.example").await);
    assert!(is_served(&rig, &own, "node.example").await);

    // Nodes and operators name the authority that they trust, also where both have the name.
    rig.tenant("acme").await;
    let url = format!("https://localhost:{}", rig.server.address().port());
    let controllers = [url.parse().unwrap()];
    let token = rig.invite("in").await;
    let node = hawser_client::enrol(&controllers, &token).await.unwrap();
    let node = NodeClient::new(&controllers, &node).unwrap();
    node.me().await.unwrap();
    let operator = OperatorClient::new(&controllers, &own, &rig.admin).unwrap();
    operator.me().await.unwrap();
    let console = OperatorClient::new(&controllers, &outside.pem(), &rig.admin).unwrap();
    console.me().await.unwrap();

    // Files that do not belong together change nothing; the next certificate is used.
    std::fs::write(&files.key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(is_served(&rig, &outside.pem(), "console.example").await);
    outside.issue(&["next.example"], &files);
    rig.until(async || is_served(&rig, &outside.pem(), "next.example").await)
        .await;
    assert!(!is_served(&rig, &outside.pem(), "console.example").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_outside_certificate_prevents_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = crate::rig::config(&directory);
    config.tls = Some(TlsConfig {
        certificate: directory.path().join("none.pem"),
        key: directory.path().join("none.key"),
    });
    let error = hawser_controller::Server::start(config)
        .await
        .err()
        .unwrap();
    assert!(format!("{error:#}").contains("none.pem"), "{error:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_say_which_authorities_they_trust() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let node = rig.enrol("in").await;
    let authorities = rig.get("/v1/authority").await.body["authorities"].clone();
    let own = authorities[0]["sha256"].as_str().unwrap();
    assert_eq!(authorities[0]["issues"], true);
    assert_eq!(authorities.as_array().unwrap().len(), 1);
    let register = async |authorities: Value| {
        let body = json!({ "version": "1", "paths": [], "authorities": authorities });
        let caller = crate::rig::Caller::Node(&node);
        rig.call(caller, "PUT", "/v1/nodes/in/registration", Some(body))
            .await
    };
    assert_eq!(rig.get("/v1/nodes/in").await.body["authorities"], json!([]));
    assert_eq!(register(json!([own])).await.status, 204);
    assert_eq!(
        rig.get("/v1/nodes/in").await.body["authorities"],
        json!([own])
    );
    register(json!(["5e"])).await.is_problem(422);
    register(json!(vec![own; 9])).await.is_problem(422);
}
