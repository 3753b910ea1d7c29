//! The self-test of the emulator.

use hawser_lab::self_test::self_test;

#[test]
fn the_self_test_measures_rate_and_delay() {
    let test = self_test(0.3).unwrap();

    let names: Vec<_> = test.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(
        names,
        ["emulator/rate", "emulator/table1", "emulator/delay"]
    );
    assert!(test.cases[1].metrics.get("rate_mbps").unwrap() > 0.0);
    assert!(test.cases[2].metrics.get("delay_error_p50_ms").unwrap() >= 0.0);
}
