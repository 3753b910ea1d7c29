//! Departure times with queueing disciplines that ignore them.

mod pair;

use hawser_congestion::DepartureFinding;
use pair::Pair;

#[test]
fn disciplines_that_ignore_departure_times_are_detected() {
    for (name, discipline) in [("none", "noqueue"), ("pfifo", "pfifo limit 1000")] {
        let mut pair = Pair::create(name, discipline);
        let finding = pair.find_on_a_slow_machine();
        assert_eq!(finding, DepartureFinding::Early, "{discipline}");
    }
}
