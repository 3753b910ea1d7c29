//! Properties that hold for any behaviour of uplinks and servers: the commands fit together, and a
//! world that has become healthy leads to a session over all uplinks within a bounded time.

use crate::world::{MS, World};
use hawser_uplinks::SUPERSEDED_PAUSE;
use proptest::prelude::*;
use std::time::Duration;

/// The time within which a healthy world leads to a session over all uplinks: a dial that was begun
/// before (10 s), the answer to a request (5 s) and the longest pause (5 s), each for the search and
/// then for the uplinks.
const RECOVERY: Duration = Duration::from_secs(40);

#[derive(Debug, Clone)]
enum Operation {
    Pass { ms: u32 },
    Up { uplink: usize, is_up: bool },
    Pause { uplink: usize, is_paused: bool },
    Readdress { uplink: usize, last: u8 },
    Kill { server: usize },
    Revive { server: usize },
    Forget { server: usize },
    Drain { server: usize },
    Refuse { server: usize, refuses: bool },
    Backlog { backlog: bool },
    Wait { is_waiting: bool },
    List { first: usize },
    Slow { server: usize, ms: u32 },
    TakeOver,
    Improve,
    BeginMonth,
    ReportLate { reports_late: bool },
    Configure { uplink: usize, cost: u8, mtu: u16 },
    Survey { every_s: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    let (uplink, server) = (|| 0..10usize, || 0..3usize);
    prop_oneof![
        12 => (1u32..4000).prop_map(|ms| Operation::Pass { ms }),
        2 => (5_000u32..60_000).prop_map(|ms| Operation::Pass { ms }),
        4 => (uplink(), any::<bool>()).prop_map(|(uplink, is_up)| Operation::Up { uplink, is_up }),
        4 => (uplink(), any::<bool>())
            .prop_map(|(uplink, is_paused)| Operation::Pause { uplink, is_paused }),
        2 => (uplink(), 100u8..200).prop_map(|(uplink, last)| Operation::Readdress { uplink, last }),
        2 => server().prop_map(|server| Operation::Kill { server }),
        2 => server().prop_map(|server| Operation::Revive { server }),
        1 => server().prop_map(|server| Operation::Forget { server }),
        2 => server().prop_map(|server| Operation::Drain { server }),
        2 => (server(), any::<bool>())
            .prop_map(|(server, refuses)| Operation::Refuse { server, refuses }),
        1 => any::<bool>().prop_map(|backlog| Operation::Backlog { backlog }),
        1 => any::<bool>().prop_map(|is_waiting| Operation::Wait { is_waiting }),
        1 => server().prop_map(|first| Operation::List { first }),
        1 => (server(), 1u32..2000).prop_map(|(server, ms)| Operation::Slow { server, ms }),
        1 => Just(Operation::TakeOver),
        1 => Just(Operation::Improve),
        1 => Just(Operation::BeginMonth),
        1 => any::<bool>().prop_map(|reports_late| Operation::ReportLate { reports_late }),
        1 => (uplink(), 0u8..3, 1280u16..1283)
            .prop_map(|(uplink, cost, mtu)| Operation::Configure { uplink, cost, mtu }),
        1 => (0u64..3).prop_map(|tens| Operation::Survey { every_s: 10 * tens }),
    ]
}

fn apply(world: &mut World, operation: &Operation) {
    let (uplinks, servers) = (world.uplinks.len(), world.servers.len());
    match *operation {
        Operation::Pass { ms } => world.pass(ms * MS),
        Operation::Up { uplink, is_up } => {
            world.uplinks[uplink % uplinks].is_up = is_up;
            world.announce_uplinks();
        }
        Operation::Pause { uplink, is_paused } => {
            world.uplinks[uplink % uplinks].is_paused = is_paused;
        }
        Operation::Readdress { uplink, last } => {
            world.uplinks[uplink % uplinks].uplink.ipv4 = Some([192, 0, 2, last].into());
            world.announce_uplinks();
        }
        Operation::Configure { uplink, cost, mtu } => {
            let uplink = &mut world.uplinks[uplink % uplinks].uplink;
            (uplink.cost, uplink.mtu) = (cost, mtu);
            world.announce_uplinks();
        }
        Operation::Survey { every_s } => {
            let interval = (every_s > 0).then(|| Duration::from_secs(every_s));
            world.survey_every(interval);
        }
        Operation::Kill { server } => world.kill(server % servers),
        Operation::Revive { server } => world.servers[server % servers].is_alive = true,
        Operation::Forget { server } => world.forget(server % servers),
        Operation::Drain { server } => world.drain(server % servers),
        Operation::Refuse { server, refuses } => world.servers[server % servers].refuses = refuses,
        Operation::Backlog { backlog } => world.backlog(backlog),
        Operation::Wait { is_waiting } => world.is_waiting = is_waiting,
        Operation::List { first } => world.announce_some_servers(first),
        Operation::Slow { server, ms } => world.servers[server % servers].rtt = ms * MS,
        Operation::TakeOver => world.take_over(),
        Operation::Improve => world.improve(),
        Operation::BeginMonth => world.begin_month(),
        Operation::ReportLate { reports_late } => world.reports_late = reports_late,
    }
}

fn run(uplinks: usize, servers: usize, seed: u64, surveys: bool, operations: &[Operation]) {
    let mut world = World::new(uplinks, servers, seed);
    let interval = surveys.then(|| Duration::from_secs(10));
    world.survey_every(interval);
    for operation in operations {
        apply(&mut world, operation);
    }
    let was_taken_over = operations.iter().any(|o| matches!(o, Operation::TakeOver));
    world.survey_every(interval);
    world.heal();
    if was_taken_over {
        world.pass(SUPERSEDED_PAUSE);
    }
    world.pass(RECOVERY);
    assert!(world.is_connected(), "not connected");
    if surveys {
        // The session moves to the nearest server, and stays there.
        world.pass(Duration::from_secs(60));
        assert!(world.is_connected(), "not connected after a move");
    }
    let session = world.session();
    world.pass(Duration::from_secs(60));
    assert_eq!(world.session(), session, "a healthy session is kept");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_healthy_world_leads_to_a_session_over_all_uplinks(
        uplinks in 1..11usize,
        servers in 1..4usize,
        seed: u64,
        surveys: bool,
        operations in proptest::collection::vec(operation(), 0..60),
    ) {
        run(uplinks, servers, seed, surveys, &operations);
    }
}
