//! Nodes and operators that a controller must reject, and unknown clients that must not block the
//! others.

use hawser_client::{Controller, Error, Identity, NodeClient, OperatorClient, enrol};
use hawser_controller::{Config, Server};
use hawser_model::access::{NewEnrolment, NewToken, Scope};
use hawser_model::node::Report;
use hawser_model::resource::Tenant;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use tempfile::TempDir;

struct Rig {
    server: Server,
    controller: [Controller; 1],
    operator: OperatorClient,
    _state: TempDir,
}

impl Rig {
    async fn new() -> Self {
        Rig::with(|_| ()).await
    }

    async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let state = tempfile::tempdir().unwrap();
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let mut config = Config {
            listen,
            state: state.path().to_owned(),
            ..Config::default()
        };
        change(&mut config);
        let server = Server::start(config).await.unwrap();
        let controller = [format!("https://{}", server.address()).parse().unwrap()];
        let token = std::fs::read_to_string(server.first_token_file()).unwrap();
        let operator = OperatorClient::new(&controller, server.authority_pem(), &token).unwrap();
        for tenant in ["acme", "zenith"] {
            let tenant = Tenant {
                name: tenant.parse().unwrap(),
                description: String::new(),
            };
            operator.create_tenant(&tenant).await.unwrap();
        }
        Rig {
            server,
            controller,
            operator,
            _state: state,
        }
    }

    /// Returns an enrolment token for a node of the tenant acme.
    async fn invite(&self, node: &str) -> String {
        let enrolment = NewEnrolment {
            tenant: "acme".parse().unwrap(),
            valid_s: 60,
        };
        self.operator
            .enrol_node(&node.parse().unwrap(), &enrolment)
            .await
            .unwrap()
            .token
    }

    async fn enrolled(&self, node: &str) -> Identity {
        enrol(&self.controller, &self.invite(node).await)
            .await
            .unwrap()
    }

    async fn bearer(&self, name: &str, scope: Scope, tenant: Option<&str>) -> OperatorClient {
        let token = NewToken {
            name: name.parse().unwrap(),
            scope,
            tenant: tenant.map(|tenant| tenant.parse().unwrap()),
            valid_s: None,
        };
        let secret = self.operator.create_token(&token).await.unwrap().secret;
        OperatorClient::new(&self.controller, self.server.authority_pem(), &secret).unwrap()
    }
}

/// Returns the HTTP status with which the controller rejected a request.
fn status<T>(answer: Result<T, Error>) -> u16 {
    answer
        .map(drop)
        .unwrap_err()
        .status()
        .expect("the controller answers")
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_use_an_enrolment_token_at_once_one_is_enrolled() {
    let rig = Rig::new().await;
    let token = rig.invite("edge-1").await;
    let answers = tokio::join!(
        enrol(&rig.controller, &token),
        enrol(&rig.controller, &token),
        enrol(&rig.controller, &token),
        enrol(&rig.controller, &token),
    );
    let answers: [_; 4] = answers.into();
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    assert_eq!(status(enrol(&rig.controller, &token).await), 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_changed_enrols_nobody() {
    let rig = Rig::new().await;
    let token = rig.invite("edge-1").await;
    let parts: Vec<&str> = token.split('.').collect();
    let forged =
        |node: &str, id: &str, secret: &str| format!("hawser1.{node}.{id}.{secret}.{}", parts[4]);
    for token in [
        forged(parts[1], parts[2], &"0".repeat(parts[3].len())),
        forged(parts[1], &"0".repeat(parts[2].len()), parts[3]),
        forged("edge-2", parts[2], parts[3]),
    ] {
        assert_eq!(status(enrol(&rig.controller, &token).await), 403, "{token}");
    }
    enrol(&rig.controller, &token)
        .await
        .expect("the original token is still valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_opens_nothing() {
    let (ours, other) = (Rig::new().await, Rig::new().await);
    let unknown = other.enrolled("edge-1").await;
    ours.enrolled("edge-1").await;
    let folder = tempfile::tempdir().unwrap();
    unknown.store(folder.path()).unwrap();
    // Give the unknown node the certificate of the controller's authority.
    std::fs::write(
        folder.path().join("authority.pem"),
        ours.server.authority_pem(),
    )
    .unwrap();
    let unknown =
        NodeClient::new(&ours.controller, &Identity::load(folder.path()).unwrap()).unwrap();
    let error = unknown.report(&Report::default()).await.unwrap_err();
    assert_eq!(
        error.status(),
        None,
        "the handshake fails before a request is sent: {error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_no_more_than_its_scope_and_its_tenant() {
    let rig = Rig::new().await;
    rig.enrolled("edge-1").await;
    let node = "edge-1".parse().unwrap();
    let enrolment = NewEnrolment {
        tenant: "acme".parse().unwrap(),
        valid_s: 60,
    };
    let token = NewToken {
        name: "more".parse().unwrap(),
        scope: Scope::Read,
        tenant: None,
        valid_s: None,
    };

    let reader = rig.bearer("reader", Scope::Read, None).await;
    assert_eq!(reader.node(&node).await.unwrap().name, node);
    assert_eq!(status(reader.enrol_node(&node, &enrolment).await), 403);
    assert_eq!(status(reader.create_token(&token).await), 403);

    let operator = rig.bearer("operator", Scope::Operate, Some("zenith")).await;
    assert_eq!(operator.nodes().all().await.unwrap(), []);
    assert!([403, 404].contains(&status(operator.revoke_node(&node).await)));
    assert_eq!(
        status(
            operator
                .enrol_node(&"edge-2".parse().unwrap(), &enrolment)
                .await
        ),
        403
    );
    assert_eq!(status(operator.create_token(&token).await), 403);

    let nobody =
        OperatorClient::new(&rig.controller, rig.server.authority_pem(), "guessed").unwrap();
    assert_eq!(status(nobody.nodes().all().await), 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_node_is_refused_at_once() {
    let rig = Rig::new().await;
    let node = NodeClient::new(&rig.controller, &rig.enrolled("edge-1").await).unwrap();
    let mut stream = node.stream().await.unwrap();
    rig.operator.revoke_node(node.node()).await.unwrap();
    assert_eq!(status(node.report(&Report::default()).await), 403);
    while stream.next().await.is_ok_and(|message| message.is_some()) {}
    assert_eq!(status(node.stream().await), 403);
}

/// Half of them send nothing, half start a handshake. Every response must arrive within a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_slow_strangers_keep_nobody_from_an_answer() {
    const SLOW_CLIENTS: usize = 1_000;
    let (_, max) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, max, max).unwrap();
    // No slow client is disconnected before the others are served.
    let rig = Rig::with(|config| config.limits.request_timeout_s = 600).await;
    let identity = rig.enrolled("edge-1").await;
    let mut slow_clients = Vec::with_capacity(SLOW_CLIENTS);
    for number in 0..SLOW_CLIENTS {
        let mut unknown = TcpStream::connect(rig.server.address()).unwrap();
        if number % 2 == 0 {
            // A TLS record header that announces 512 bytes, followed by one byte.
            unknown
                .write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01])
                .unwrap();
        }
        slow_clients.push(unknown);
    }
    for _ in 0..20 {
        // A new connection each time: slow clients would first of all prevent others from
        // connecting.
        let node = NodeClient::new(&rig.controller, &identity).unwrap();
        node.report(&Report::default()).await.unwrap();
        rig.operator.me().await.unwrap();
    }
    drop(slow_clients);
}
