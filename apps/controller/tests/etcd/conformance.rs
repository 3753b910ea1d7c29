//! etcd does what every store has to do; and what only etcd has: users, TLS, several clients.

use crate::server::EtcdServer;
use crate::store_suite::{self, Subject};
use async_trait::async_trait;
use hawser_controller::store::{Etcd, EtcdSettings, OpenError, Store, Write};
use std::sync::Arc;

struct Connected {
    server: EtcdServer,
    store: Arc<Etcd>,
}

impl Connected {
    async fn new() -> Connected {
        let server = EtcdServer::start();
        let store = Arc::new(server.connect("hawser/").await);
        // Of a neighbour, on both sides in the order of keys, and under no prefix at all.
        for prefix in ["hawsel/", "hawser", "hawser0"] {
            let neighbour = server.connect(prefix).await;
            neighbour.commit(vec![Write::put("key/1", *b"not ours")]).await.expect("written");
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
        // What the revision itself changed is kept.
        let revision = self.store.commit(vec![Write::put("forget", *b"x")]).await.expect("written");
        let mut client =
            etcd_client::Client::connect([self.server.endpoint()], None).await.expect("connected");
        client.compact(i64::try_from(revision).expect("small"), None).await.expect("compacted");
    }
}

store_suite::suite!(Connected::new());

#[tokio::test]
async fn nobody_there_is_said_so() {
    let mut server = EtcdServer::start();
    server.kill();
    let refused = Etcd::connect(server.settings("hawser/")).await.err().expect("nobody is there");
    assert!(matches!(&refused, OpenError::Unavailable(_)), "{refused}");
    assert!(refused.to_string().contains(server.endpoint()), "{refused}");
}

#[tokio::test]
async fn a_user_is_asked_for_a_password() {
    let server = EtcdServer::start();
    server.connect("hawser/").await;
    let mut admin = etcd_client::Client::connect([server.endpoint()], None).await.expect("connected");
    admin.user_add("root", "correct", None).await.expect("added");
    admin.role_add("root").await.expect("added");
    admin.user_grant_role("root", "root").await.expect("granted");
    admin.auth_enable().await.expect("enabled");

    let as_user = |password: &str| {
        let user = Some(("root".into(), password.into()));
        Etcd::connect(EtcdSettings { user, ..server.settings("hawser/") })
    };
    let store = as_user("correct").await.expect("accepted");
    store.commit(vec![Write::put("a", *b"1")]).await.expect("written");
    for refused in [as_user("wrong").await, Etcd::connect(server.settings("hawser/")).await] {
        let refused = refused.err().expect("refused");
        assert!(matches!(&refused, OpenError::Unavailable(_)), "{refused}");
    }
}
