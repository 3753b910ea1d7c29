//! etcd passes the tests of every store, and tests of its own: users, TLS, several clients.

use crate::server::{self, EtcdServer};
use crate::store_suite::{self, Subject};
use async_trait::async_trait;
use hawser_controller::store::{Etcd, EtcdSettings, EtcdTls, OpenError, Store, Write};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::sync::Arc;
use std::time::Duration;

struct Connected {
    server: EtcdServer,
    store: Arc<Etcd>,
}

impl Connected {
    async fn new() -> Connected {
        let server = EtcdServer::start();
        let store = Arc::new(server.connect("hawser/").await);
        // Foreign keys before and after ours in the order of keys, and one without any prefix.
        for prefix in ["hawsel/", "hawser", "hawser0"] {
            let neighbour = server.connect(prefix).await;
            neighbour
                .commit(vec![Write::put("key/1", *b"not ours")])
                .await
                .expect("written");
        }
        Connected { server, store }
    }
}

#[async_trait]
impl Subject for Connected {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn forget_history(&self) {
        // The changes of the revision itself are retained.
        let revision = self
            .store
            .commit(vec![Write::put("forget", *b"x")])
            .await
            .expect("written");
        let mut client = etcd_client::Client::connect([self.server.endpoint()], None)
            .await
            .expect("connected");
        client
            .compact(i64::try_from(revision).expect("small"), None)
            .await
            .expect("compacted");
    }
}

store_suite::suite!(Connected::new());

#[tokio::test]
async fn an_unreachable_etcd_is_reported() {
    let mut server = EtcdServer::start();
    server.kill();
    let refused = Etcd::connect(server.settings("hawser/"))
        .await
        .err()
        .expect("etcd is down");
    assert!(matches!(&refused, OpenError::Unavailable(_)), "{refused}");
    assert!(refused.to_string().contains(server.endpoint()), "{refused}");
}

#[tokio::test]
async fn a_user_is_asked_for_a_password() {
    let server = EtcdServer::start();
    server.connect("hawser/").await;
    let mut admin = etcd_client::Client::connect([server.endpoint()], None)
        .await
        .expect("connected");
    admin
        .user_add("root", "correct", None)
        .await
        .expect("added");
    admin.role_add("root").await.expect("added");
    admin
        .user_grant_role("root", "root")
        .await
        .expect("granted");
    admin.auth_enable().await.expect("enabled");

    let as_user = |password: &str| {
        let user = Some(("root".into(), password.into()));
        Etcd::connect(EtcdSettings {
            user,
            ..server.settings("hawser/")
        })
    };
    let store = as_user("correct").await.expect("accepted");
    store
        .commit(vec![Write::put("a", *b"1")])
        .await
        .expect("written");
    for refused in [
        as_user("wrong").await,
        Etcd::connect(server.settings("hawser/")).await,
    ] {
        let refused = refused.err().expect("refused");
        assert!(matches!(&refused, OpenError::Unavailable(_)), "{refused}");
    }
}

#[tokio::test]
async fn both_sides_have_to_show_a_certificate() {
    let authority = Authority::new();
    let directory = tempfile::TempDir::new().expect("a directory");
    let (certificate, key) = authority.certificate();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let server = EtcdServer::start_with(&[
        &format!("--cert-file={}", file("certificate", &certificate)),
        &format!("--key-file={}", file("key", &key)),
        &format!("--trusted-ca-file={}", file("authority", &authority.pem)),
        "--client-cert-auth",
    ]);
    let with = |authority: &Authority, identity| {
        let tls = Some(EtcdTls {
            authority: authority.pem.clone(),
            identity,
        });
        EtcdSettings {
            tls,
            ..server.settings("hawser/")
        }
    };

    let store = server::connect(with(&authority, Some(authority.certificate()))).await;
    store
        .commit(vec![Write::put("a", *b"1")])
        .await
        .expect("written");
    assert!(store.get("a").await.expect("read").is_some());

    let stranger = Authority::new();
    for refused in [
        with(&authority, None),
        with(&authority, Some(stranger.certificate())),
        with(&stranger, Some(authority.certificate())),
    ] {
        let refused = Etcd::connect(EtcdSettings {
            timeout: Duration::from_secs(2),
            ..refused
        })
        .await
        .err()
        .expect("refused");
        assert!(matches!(&refused, OpenError::Unavailable(_)), "{refused}");
    }
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Authority {
        let mut parameters = CertificateParams::new(vec![]).expect("no names");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = parameters.self_signed(&key).expect("signed").pem();
        Authority {
            issuer: Issuer::new(parameters, key),
            pem,
        }
    }

    /// Returns a certificate for both ends and its key, PEM.
    fn certificate(&self) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let parameters = CertificateParams::new(vec!["127.0.0.1".into()]).expect("an address");
        (
            parameters
                .signed_by(&key, &self.issuer)
                .expect("signed")
                .pem(),
            key.serialize_pem(),
        )
    }
}
