//! Only one candidate leads at a time.

use super::{Subject, in_time, put};
use hawser_controller::store::{Election, Error, Leadership, Role, Write};
use std::time::Duration;
use tokio::sync::watch::Receiver;

/// So long that a busy machine renews it in time.
const TTL: Duration = Duration::from_secs(5);

async fn leads(role: &mut Receiver<Role>) -> Leadership {
    let role = in_time(role.wait_for(|role| role.leadership().is_some()))
        .await
        .expect("it stands");
    role.leadership().cloned().expect("it has only just begun")
}

async fn follows(role: &mut Receiver<Role>, whom: &str) {
    let is_following =
        |role: &Role| matches!(role, Role::Follower { leader: Some(leader) } if leader == whom);
    in_time(role.wait_for(is_following))
        .await
        .expect("it stands");
}

pub(crate) async fn one_candidate_leads(subject: &impl Subject) {
    let stand = |name| Election::start(subject.store(), "leader", name, TTL);
    let first = stand("first");
    let held = leads(&mut first.role()).await;
    let second = stand("second");
    follows(&mut second.role(), "first").await;

    // Longer than the lease, so that it has to be renewed.
    let until = tokio::time::Instant::now() + TTL * 3 / 2;
    while tokio::time::Instant::now() < until {
        assert!(held.holds());
        assert!(second.role().borrow().leadership().is_none());
        tokio::time::sleep(TTL / 20).await;
    }

    let mut role = first.role();
    in_time(first.resign()).await;
    assert!(!held.holds());
    assert!(role.borrow_and_update().leadership().is_none());
    let next = leads(&mut second.role()).await;
    assert!(next.revision() > held.revision());
    in_time(second.resign()).await;
    assert_eq!(subject.store().get("leader").await, Ok(None));
}

pub(crate) async fn a_dead_leader_is_replaced(subject: &impl Subject) {
    // Its own runtime, which ends abruptly like a killed process.
    let store = subject.store();
    let (sender, receiver) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let election = runtime.block_on(async { Election::start(store, "leader", "first", TTL) });
        let held = runtime.block_on(leads(&mut election.role()));
        sender.send(held).expect("wanted");
        ended.recv().expect("wanted");
        runtime.shutdown_background();
    });
    let held = tokio::task::spawn_blocking(move || receiver.recv().expect("it leads"))
        .await
        .expect("no panic");
    let second = Election::start(subject.store(), "leader", "second", TTL);
    follows(&mut second.role(), "first").await;

    end.send(()).expect("wanted");
    let next = leads(&mut second.role()).await;
    assert!(
        !held.holds(),
        "the one before has stopped to believe in itself"
    );
    assert!(next.revision() > held.revision());
    in_time(second.resign()).await;
    tokio::task::spawn_blocking(move || process.join())
        .await
        .expect("no panic")
        .expect("no panic");
}

pub(crate) async fn a_former_leader_cannot_write(subject: &impl Subject) {
    let store = subject.store();
    let first = Election::start(store.clone(), "leader", "first", TTL);
    let held = leads(&mut first.role()).await;
    let decide = |by: &Leadership, what: &'static [u8]| {
        store.commit(vec![by.fence(), Write::put("policy", what)])
    };
    decide(&held, b"1").await.expect("it leads");

    in_time(first.resign()).await;
    assert!(
        matches!(decide(&held, b"2").await, Err(Error::Conflict { key, found: None }) if key == "leader")
    );
    let second = Election::start(store.clone(), "leader", "second", TTL);
    let next = leads(&mut second.role()).await;
    assert!(
        matches!(decide(&held, b"3").await, Err(Error::Conflict { key, .. }) if key == "leader")
    );
    decide(&next, b"4").await.expect("it leads");
    let policy = store.get("policy").await.expect("read").expect("held");
    assert_eq!(&*policy.value, b"4");
    in_time(second.resign()).await;
}

pub(crate) async fn a_leader_whose_key_is_deleted_stops(subject: &impl Subject) {
    let store = subject.store();
    let election = Election::start(store.clone(), "leader", "first", TTL);
    let mut role = election.role();
    let held = leads(&mut role).await;
    put(&*store, "leader-like", "another key").await;
    assert!(held.holds());

    store
        .commit(vec![Write::delete("leader")])
        .await
        .expect("deleted");
    in_time(role.wait_for(|_| !held.holds()))
        .await
        .expect("it stands");
    let again = leads(&mut role).await;
    assert!(again.revision() > held.revision());
    in_time(election.resign()).await;
}
