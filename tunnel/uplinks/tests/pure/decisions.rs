//! The reactions of a supervisor to single events.

use crate::world::{MS, World};
use hawser_units::PathId;
use hawser_uplinks::{
    Answer, CloseReason, Command, DialReason, Dialed, FAILED_AFTER, Reachability, SUPERSEDED_PAUSE,
    Supervisor, Timer,
};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

const S: Duration = Duration::from_secs(1);

/// Returns a world in which all uplinks have a path to the nearest server.
fn connected(uplinks: usize, servers: usize) -> World {
    let mut world = World::new(uplinks, servers, 1);
    world.pass(S);
    assert!(world.is_connected());
    world.log.clear();
    world
}

/// Returns the answer of the first server to an uplink without IPv6.
fn dialed(world: &World) -> Dialed {
    let remote = world.servers[0].server.addresses[0];
    Dialed {
        rtt: MS,
        remote,
        mtu: 1500,
    }
}

fn is_close(command: &Command, expected: CloseReason) -> bool {
    matches!(command, Command::Close { reason, .. } if *reason == expected)
}

#[test]
fn the_nearest_server_that_answers_in_time_is_chosen() {
    let mut world = World::new(2, 3, 1);
    world.servers[0].rtt = 300 * MS;
    world.pass(2 * S);
    assert_eq!(world.server().unwrap(), "pop1");
    assert!(world.is_connected());
}

/// Returns a world in which the session is at `pop0` and a nearer server is searched every minute.
fn surveying() -> World {
    let mut world = connected(2, 2);
    world.survey_every(Some(60 * S));
    assert_eq!(world.server().unwrap(), "pop0");
    world
}

#[test]
fn a_session_moves_to_a_server_that_is_nearer_twice() {
    let mut world = surveying();
    world.servers[0].rtt = 90 * MS;
    world.servers[1].rtt = 30 * MS;
    world.pass(61 * S);
    assert_eq!(world.server().unwrap(), "pop0", "nearer for the first time");
    world.pass(61 * S);
    assert_eq!(world.server().unwrap(), "pop1");
    world.pass(S);
    assert!(world.is_connected());
    world.log.clear();
    world.pass(600 * S);
    assert_eq!(world.server().unwrap(), "pop1");
    let is_opened = |command: &Command| matches!(command, Command::Open { .. });
    assert!(!world.log.iter().any(is_opened), "it stays there");
}

#[test]
fn a_session_leaves_for_a_much_nearer_server() {
    let mut world = connected(1, 2);
    world.survey_every(Some(60 * S));
    world.servers[0].rtt = 200 * MS;
    world.servers[1].rtt = 30 * MS;
    world.pass(122 * S);
    assert_eq!(world.server().unwrap(), "pop1");
}

#[test]
fn a_server_silent_in_a_survey_keeps_its_session() {
    let mut world = surveying();
    world.servers[0].rtt = 3 * S;
    world.servers[1].rtt = 30 * MS;
    world.pass(600 * S);
    assert_eq!(world.server().unwrap(), "pop0");
    assert!(world.is_connected());
}

#[test]
fn a_session_stays_where_it_is_for_little_gain() {
    let mut world = surveying();
    world.servers[0].rtt = 50 * MS;
    world.servers[1].rtt = 41 * MS;
    world.pass(600 * S);
    assert_eq!(world.server().unwrap(), "pop0");
    // Nearer now and then, but not twice in a row.
    for _ in 0..3 {
        world.servers[1].rtt = 5 * MS;
        world.pass(60 * S);
        world.servers[1].rtt = 41 * MS;
        world.pass(60 * S);
    }
    assert_eq!(world.server().unwrap(), "pop0");
    assert!(world.is_connected());
}

#[test]
fn a_session_stays_when_the_nearer_server_takes_none() {
    let mut world = surveying();
    world.servers[1].rtt = MS;
    world.servers[1].refuses = true;
    world.pass(600 * S);
    assert_eq!(world.server().unwrap(), "pop0");
    assert!(world.is_connected());
}

#[test]
fn a_survey_that_is_switched_off_moves_nothing() {
    let mut world = surveying();
    world.servers[0].rtt = 90 * MS;
    world.servers[1].rtt = 30 * MS;
    world.log.clear();
    // The same interval again does not begin a new one.
    world.pass(50 * S);
    world.survey_every(Some(60 * S));
    world.pass(15 * S);
    assert!(world.dials(DialReason::Search) > 0);
    world.survey_every(None);
    world.pass(600 * S);
    assert_eq!(world.server().unwrap(), "pop0");
}

#[test]
fn a_path_is_replaced_when_the_mtu_of_its_uplink_changes() {
    let mut world = connected(2, 1);
    let session = world.session();
    world.log.clear();
    world.uplinks[0].uplink.mtu = 1400;
    world.announce_uplinks();
    world.pass(S);
    assert_eq!(world.dials(DialReason::Redial), 1);
    let replaced = |command: &&Command| is_close(command, CloseReason::Replaced);
    assert_eq!(world.log.iter().filter(replaced).count(), 1);
    world.pass(60 * S);
    assert_eq!(world.dials(DialReason::Redial), 1, "it has the new MTU");
    assert!(world.is_connected());
    assert_eq!(world.session(), session);
}

#[test]
fn an_mtu_that_does_not_work_is_tried_every_30_s() {
    let mut world = connected(2, 1);
    let session = world.session();
    world.log.clear();
    world.uplinks[0].largest = 1500;
    world.uplinks[0].uplink.mtu = 9000;
    world.announce_uplinks();
    // Each attempt takes its time until it is given up, and is followed by a pause of 30 s.
    let round = FAILED_AFTER + 30 * S;
    world.pass(round - S);
    for attempts in 1..=3 {
        assert_eq!(world.dials(DialReason::Redial), attempts);
        assert!(world.is_connected(), "the path before is kept");
        world.pass(round);
    }
    assert_eq!(world.session(), session);
    let replaced = |command: &&Command| is_close(command, CloseReason::Replaced);
    assert_eq!(world.log.iter().filter(replaced).count(), 0);

    world.uplinks[0].largest = 9000;
    world.pass(round);
    assert_eq!(world.log.iter().filter(replaced).count(), 1);
    let attempts = world.dials(DialReason::Redial);
    world.pass(2 * round);
    assert_eq!(
        world.dials(DialReason::Redial),
        attempts,
        "it has the new MTU"
    );
    assert!(world.is_connected());
}

#[test]
fn a_risen_cost_puts_an_uplink_on_standby() {
    let mut world = connected(2, 1);
    world.log.clear();
    assert_eq!(world.paths_in_use(), ["wwan0".to_owned()].into());
    world.uplinks[0].uplink.cost = 2;
    world.announce_uplinks();
    world.pass(S);
    assert_eq!(world.paths_in_use(), ["wwan1".to_owned()].into());
    assert_eq!(world.dials(DialReason::Redial), 0);
}

#[test]
fn without_a_survey_a_session_stays_at_its_server() {
    let mut world = connected(2, 2);
    world.servers[1].rtt = MS;
    world.pass(600 * S);
    assert_eq!(world.server().unwrap(), "pop0");
}

#[test]
fn nothing_is_dialed_before_the_servers_are_known() {
    let mut world = World::new(1, 1, 1);
    let list = vec![world.uplinks[0].uplink.clone()];
    let mut supervisor = Supervisor::new(world.now, 1, Default::default());
    supervisor.handle_uplinks(world.now, list);
    assert_eq!(supervisor.poll_command(), None);
    assert_eq!(supervisor.poll_timeout(), None);
    world.pass(S);
    assert!(world.is_connected());
}

#[test]
fn a_server_that_dies_is_left_within_seconds() {
    let mut world = connected(2, 2);
    world.kill(0);
    world.pass(3 * S);
    assert_eq!(world.server().unwrap(), "pop1");
    world.pass(S);
    assert!(world.is_connected());
}

#[test]
fn after_an_outage_of_all_uplinks_the_session_goes_on() {
    let mut world = connected(2, 1);
    let session = world.session();
    world.uplinks[0].is_paused = true;
    world.uplinks[1].is_paused = true;
    world.pass(8 * S);
    assert_eq!(
        world.supervisor.reachability("wwan0"),
        Some(Reachability::Failed)
    );
    world.uplinks[0].is_paused = false;
    world.uplinks[1].is_paused = false;
    world.pass(10 * S);
    assert!(world.is_connected());
    assert_eq!(world.session(), session);
}

#[test]
fn a_failing_path_is_replaced_by_another_connection() {
    let mut world = connected(2, 1);
    world.uplinks[1].is_paused = true;
    world.pass(FAILED_AFTER + 500 * MS);
    assert_eq!(world.dials(DialReason::Redial), 1);
    world.uplinks[1].is_paused = false;
    world.pass(S);
    let replaced = |command: &Command| is_close(command, CloseReason::Replaced);
    assert!(world.log.iter().any(replaced));
    assert!(world.is_connected());
    assert_eq!(
        world.dials(DialReason::Search),
        0,
        "the other path delivers"
    );
}

#[test]
fn a_path_to_improve_is_kept_until_another_has_joined() {
    let mut world = connected(2, 1);
    world.improve();
    assert!(
        !world
            .log
            .iter()
            .any(|command| is_close(command, CloseReason::Replaced))
    );
    let is_redial = |command: &Command| {
        matches!(
            command,
            Command::Dial {
                reason: DialReason::Redial,
                ..
            }
        )
    };
    assert_eq!(
        world
            .log
            .iter()
            .filter(|command| is_redial(command))
            .count(),
        1
    );
    let session = world.session();
    world.pass(S);
    assert!(
        world
            .log
            .iter()
            .any(|command| is_close(command, CloseReason::Replaced))
    );
    assert!(world.is_connected());
    assert_eq!(world.session(), session);
}

#[test]
fn redials_of_a_silent_path_get_rarer_and_are_limited() {
    let mut world = connected(2, 1);
    world.uplinks[1].is_paused = true;
    world.pass(19 * S);
    assert_eq!(world.dials(DialReason::Redial), 3, "after 3, 6 and 12 s");
    let timeout = world.supervisor.poll_timeout();
    assert!(timeout.is_none_or(|(_, timer)| timer != Timer::Redial));
}

#[test]
fn an_answered_redial_waits_for_full_packets() {
    let world = World::new(1, 1, 1);
    let mut now = world.now;
    let mut uplink = world.uplinks[0].uplink.clone();
    let mut supervisor = Supervisor::new(now, 1, Default::default());
    supervisor.handle_servers(now, vec![world.servers[0].server.clone()]);
    supervisor.handle_uplinks(now, vec![uplink.clone()]);
    let Some(Command::Dial { connection, .. }) = supervisor.poll_command() else {
        panic!("the server is dialed");
    };
    supervisor.handle_dialed(now, connection, Some(dialed(&world)));
    supervisor.handle_answer(now, connection, Answer::Accepted);
    while supervisor.poll_command().is_some() {}

    uplink.mtu -= 100;
    supervisor.handle_uplinks(now, vec![uplink]);
    supervisor.handle_timeout(now);
    let Some(Command::Dial { connection, .. }) = supervisor.poll_command() else {
        panic!("the server is dialed for packets of the other size");
    };
    now += S;
    supervisor.handle_dialed(now, connection, Some(dialed(&world)));
    assert!(matches!(
        supervisor.poll_command(),
        Some(Command::Join { .. })
    ));
    // A driver waits for an answer for 5 s.
    now += 5 * S;
    supervisor.handle_timeout(now);
    assert_eq!(supervisor.poll_command(), None);
    now += 2 * S;
    supervisor.handle_timeout(now);
    let closed = Command::Close {
        connection,
        reason: CloseReason::Unanswered,
    };
    assert_eq!(supervisor.poll_command(), Some(closed));
}

#[test]
fn a_session_that_the_server_forgot_is_opened_again() {
    let mut world = connected(3, 1);
    let session = world.session();
    world.forget(0);
    world.pass(S);
    assert!(world.is_connected());
    assert_ne!(world.session(), session);
}

#[test]
fn a_client_that_was_superseded_waits() {
    let mut world = connected(2, 2);
    world.take_over();
    assert_eq!(world.session(), None);
    let (at, timer) = world.supervisor.poll_timeout().unwrap();
    assert_eq!((at, timer), (world.now + SUPERSEDED_PAUSE, Timer::Search));
    world.log.clear();
    world.uplinks[0].is_up = false;
    world.announce_uplinks();
    world.pass(SUPERSEDED_PAUSE - MS);
    assert_eq!(world.log, [], "not even if the uplinks change");
    world.pass(S);
    assert!(world.is_connected());
}

#[test]
fn a_client_that_supersedes_its_own_session_does_not_wait() {
    let mut world = connected(2, 1);
    world.forget_silently(0);
    world.uplinks[1].is_up = false;
    world.announce_uplinks();
    world.uplinks[1].is_up = true;
    world.announce_uplinks();
    let opens = |world: &World| {
        let is_open = |command: &Command| matches!(command, Command::Open { .. });
        world.log.iter().any(is_open)
    };
    for _ in 0..1000 {
        if !opens(&world) {
            world.pass(MS);
        }
    }
    assert!(opens(&world), "the server does not know the session");
    world.supersede();
    assert!(world.session().is_some(), "until the next one is opened");
    world.pass(S);
    assert!(world.is_connected());
}

#[test]
fn a_draining_server_is_left_if_there_is_another() {
    let mut world = connected(2, 2);
    world.drain(0);
    world.pass(S);
    assert_eq!(world.server().unwrap(), "pop1");

    let mut world = connected(2, 1);
    let session = world.session();
    world.drain(0);
    world.pass(10 * S);
    assert_eq!(world.dials(DialReason::Search), 0);
    assert_eq!(world.session(), session);
}

#[test]
fn a_server_that_refuses_is_avoided_by_the_next_search() {
    let mut world = World::new(1, 2, 1);
    world.servers[0].refuses = true;
    world.pass(2 * S);
    assert_eq!(world.server().unwrap(), "pop1");
}

#[test]
fn an_uplink_that_fails_to_open_is_avoided_next() {
    let mut world = World::new(2, 1, 1);
    let now = world.now;
    let lists = (
        world.uplinks.iter().map(|u| u.uplink.clone()).collect(),
        vec![world.servers[0].server.clone()],
    );
    let mut supervisor = Supervisor::new(now, 1, Default::default());
    supervisor.handle_servers(now, lists.1);
    supervisor.handle_uplinks(now, lists.0);
    let dial = |supervisor: &mut Supervisor| match supervisor.poll_command() {
        Some(Command::Dial {
            connection, uplink, ..
        }) => Some((connection, uplink.interface)),
        Some(Command::Close { .. }) | None => None,
        other => panic!("{other:?}"),
    };
    let (first, interface) = dial(&mut supervisor).unwrap();
    let (second, _) = dial(&mut supervisor).unwrap();
    supervisor.handle_dialed(now, first, Some(dialed(&world)));
    supervisor.handle_dialed(now, second, None);
    assert!(matches!(
        supervisor.poll_command(),
        Some(Command::Open { .. })
    ));
    supervisor.handle_answer(now, first, Answer::Failed);
    let (at, _) = supervisor.poll_timeout().unwrap();
    supervisor.handle_timeout(at);
    let (_, other) = dial(&mut supervisor).unwrap();
    assert_ne!(other, interface);
    assert_eq!(dial(&mut supervisor), None);
    world.pass(S);
}

#[test]
fn another_address_of_the_same_family_moves_the_connection() {
    let mut world = connected(2, 1);
    let address: IpAddr = [192, 0, 2, 99].into();
    world.uplinks[1].uplink.ipv4 = Some(address);
    world.announce_uplinks();
    let moved = |command: &Command| matches!(command, Command::Readdress { address: to, .. } if *to == address);
    assert!(
        world.log.iter().all(moved) && world.log.len() == 1,
        "{:?}",
        world.log
    );
    world.pass(S);
    assert!(world.is_connected());
}

#[test]
fn a_path_to_another_address_of_the_server_stays() {
    let world = World::new(1, 1, 1);
    let now = world.now;
    let mut server = world.servers[0].server.clone();
    server.addresses.reverse();
    let mut uplink = world.uplinks[0].uplink.clone();
    uplink.ipv6 = vec![Ipv6Addr::LOCALHOST.into()];
    let mut supervisor = Supervisor::new(now, 1, Default::default());
    supervisor.handle_servers(now, vec![server.clone()]);
    supervisor.handle_uplinks(now, vec![uplink.clone()]);
    let Some(Command::Dial { connection, .. }) = supervisor.poll_command() else {
        panic!("the server is dialed");
    };
    // Not the first one, which has not answered.
    let remote = server.addresses[1];
    assert_ne!(uplink.route(&server).unwrap().remote, remote);
    supervisor.handle_dialed(
        now,
        connection,
        Some(Dialed {
            rtt: MS,
            remote,
            mtu: 1500,
        }),
    );
    supervisor.handle_answer(now, connection, Answer::Accepted);
    while supervisor.poll_command().is_some() {}

    let address = [192, 0, 2, 99].into();
    uplink.ipv4 = Some(address);
    supervisor.handle_uplinks(now, vec![uplink.clone()]);
    let moved = Command::Readdress {
        connection,
        address,
    };
    assert_eq!(supervisor.poll_command(), Some(moved));
    uplink.ipv6.clear();
    supervisor.handle_uplinks(now, vec![uplink.clone()]);
    assert_eq!(
        supervisor.poll_command(),
        None,
        "the other family does not matter"
    );
    uplink.ipv4 = None;
    supervisor.handle_uplinks(now, vec![uplink]);
    let closed = supervisor.poll_command();
    assert!(closed.is_some_and(|command| is_close(&command, CloseReason::AddressFamily)));
}

#[test]
fn another_family_needs_another_connection() {
    let mut world = connected(2, 1);
    let ipv6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    world.uplinks[1].uplink.ipv4 = None;
    world.uplinks[1].uplink.ipv6 = vec![ipv6];
    world.announce_uplinks();
    let closed = |command: &Command| is_close(command, CloseReason::AddressFamily);
    assert!(world.log.iter().any(closed), "{:?}", world.log);
}

#[test]
fn a_capped_uplink_leaves_and_returns_with_the_month() {
    let mut world = connected(4, 1);
    world.pass(60 * S);
    assert!(world.supervisor.reachability("wwan3").is_none());
    let capped = &world.uplinks[3].uplink;
    assert!(world.supervisor.usage().is_used_up(capped));
    world.begin_month();
    world.pass(S);
    assert!(world.supervisor.reachability("wwan3").is_some());
}

#[test]
fn a_dear_uplink_waits_until_it_is_needed() {
    let mut world = connected(3, 1);
    assert_eq!(world.paths_in_use(), ["wwan0".to_owned()].into());
    world.is_waiting = true;
    world.pass(S);
    assert_eq!(world.paths_in_use().len(), 2, "packets have waited");
    world.is_waiting = false;
    world.pass(15 * S);
    assert_eq!(world.paths_in_use().len(), 1);
    world.uplinks[0].is_up = false;
    world.announce_uplinks();
    assert_eq!(
        world.paths_in_use(),
        ["wwan1".to_owned()].into(),
        "at once when the cheaper one goes"
    );
}

#[test]
fn a_backlog_at_the_server_counts_until_its_path_closes() {
    let mut world = connected(2, 1);
    world.backlog(true);
    world.pass(S);
    assert_eq!(world.paths_in_use().len(), 2);
    world.backlog(false);
    world.pass(15 * S);
    assert_eq!(world.paths_in_use().len(), 1);
}

#[test]
fn a_flapping_uplink_gets_another_index_each_time() {
    let mut world = connected(2, 1);
    let mut before = world.indices();
    for _ in 0..20 {
        world.uplinks[1].is_up = false;
        world.announce_uplinks();
        world.pass(100 * MS);
        world.uplinks[1].is_up = true;
        world.announce_uplinks();
        world.pass(S);
        let indices = world.indices();
        assert_eq!(indices.len(), 2);
        assert!(indices.contains(&PathId::try_from(0).unwrap()));
        assert_ne!(indices, before);
        before = indices;
    }
}

#[test]
fn more_uplinks_than_paths_are_tried_with_pauses() {
    let mut world = World::new(10, 1, 1);
    for uplink in &mut world.uplinks {
        uplink.uplink.monthly_cap = None;
    }
    world.announce_uplinks();
    world.pass(30 * S);
    assert_eq!(world.indices().len(), 8);
    world.log.clear();
    world.pass(60 * S);
    let dials = world.dials(DialReason::Join);
    assert!((2 * 10..2 * 30).contains(&dials), "{dials} in a minute");
}

#[test]
fn connections_closed_at_once_are_redialed_with_a_pause() {
    let mut world = connected(2, 1);
    world.uplinks[1].is_up = false;
    world.announce_uplinks();
    world.uplinks[1].is_up = true;
    world.announce_uplinks();
    for _ in 0..10_000 {
        world.pass(MS);
        world.close_new_paths();
    }
    let dials = world.dials(DialReason::Join);
    assert!((4..=20).contains(&dials), "{dials} in ten seconds");
}

#[test]
fn results_that_arrive_after_a_shutdown_are_closed() {
    let mut world = World::new(1, 1, 1);
    let list = vec![world.uplinks[0].uplink.clone()];
    let mut supervisor = Supervisor::new(world.now, 1, Default::default());
    supervisor.handle_uplinks(world.now, list);
    supervisor.handle_servers(world.now, vec![world.servers[0].server.clone()]);
    let Some(Command::Dial { connection, .. }) = supervisor.poll_command() else {
        panic!("the server is dialed");
    };
    supervisor.shut_down(world.now);
    let closed = Some(Command::Close {
        connection,
        reason: CloseReason::Unused,
    });
    assert_eq!(supervisor.poll_command(), closed);
    supervisor.handle_dialed(world.now, connection, Some(dialed(&world)));
    assert_eq!(supervisor.poll_command(), closed);
    assert_eq!(supervisor.poll_command(), None);
    assert_eq!(supervisor.poll_timeout(), None);
    world.pass(S);
}
