//! Uplinks that are modems, with a program that answers like ModemManager's.

use crate::process;
use crate::rig::Rig;
use hawser_tunnel::status::ModemStatus;

const MMCLI: &str = r#"#!/bin/sh
case "$1" in
-L) echo '{"modem-list":["/Modem/0"]}' ;;
-m) echo '{"modem":{"3gpp":{"operator-name":"Example Mobile"},"generic":{"access-technologies":["lte"],
  "bearers":["/Bearer/1"],"ports":["cdc-wdm0 (mbim)","wan0 (net)"],"signal-quality":{"recent":"yes","value":"67"},
  "state":"connected"}}}' ;;
-b) echo '{"bearer":{"properties":{"apn":"internet"},"status":{"connected":"yes","interface":"wan0"}}}' ;;
esac
"#;

#[test]
fn the_status_tells_the_signal_of_a_modem() {
    let rig = Rig::new();
    let programs = rig.path("programs");
    process::write_program(&programs, "mmcli", MMCLI);
    let client = rig.start_client_by("car", "", |file| {
        process::start_with_programs(&rig.client, "tunnel client", file, &programs)
    });
    let known = |text: &str| Some(text.to_owned());
    let expected = ModemStatus {
        state: known("connected"),
        operator: known("Example Mobile"),
        technology: known("lte"),
        signal_percent: Some(67),
        apn: known("internet"),
    };
    let status = client.until("the modem is known", |status| {
        status.uplinks.iter().any(|uplink| uplink.modem.is_some())
    });
    for uplink in status.uplinks {
        let is_modem = uplink.name == "wan0";
        assert_eq!(
            uplink.modem,
            is_modem.then(|| expected.clone()),
            "{}",
            uplink.name
        );
    }
}
