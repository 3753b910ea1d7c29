//! A restored copy of etcd's keys.

use crate::server::EtcdServer;
use hawser_controller::store::{Entry, Store, Write};
use hawser_controller::{Args, Config, Server};
use std::path::Path;

/// Starts a controller on the store of a configuration file, and stops it.
async fn serve_once(file: &Path) {
    let config = Config::read(file).unwrap();
    Server::start(config).await.unwrap().stop().await;
}

async fn incarnation(store: &impl Store) -> Entry {
    store.get("incarnation").await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_keys_get_another_incarnation() {
    let etcd = EtcdServer::start();
    let store = etcd.connect("hawser/").await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("controller.toml");
    let (state, endpoint) = (directory.path(), etcd.endpoint());
    let text = format!(
        "listen = '127.0.0.1:0'\nstate = {state:?}\n[store]\nkind = 'etcd'\nendpoints = [{endpoint:?}]\n"
    );
    std::fs::write(&file, text).unwrap();
    serve_once(&file).await;
    let before = incarnation(&store).await;
    serve_once(&file).await;
    assert_eq!(
        incarnation(&store).await,
        before,
        "a restart changes nothing"
    );

    let (backup, _) = store.list_all("").await.unwrap();
    for Entry { key, value, .. } in backup {
        store.commit(vec![Write::delete(&*key)]).await.unwrap();
        store.commit(vec![Write::put(&*key, value)]).await.unwrap();
    }
    assert_eq!(
        incarnation(&store).await.value,
        before.value,
        "it was copied"
    );
    let args = Args {
        config: Some(file.clone()),
        check: false,
        openapi: false,
        restored: true,
        new_admin_token: false,
        rotate_authority: None,
    };
    std::thread::spawn(move || hawser_controller::run(&args))
        .join()
        .unwrap()
        .unwrap();
    assert_ne!(incarnation(&store).await.value, before.value);
    serve_once(&file).await;
}
