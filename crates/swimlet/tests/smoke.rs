//! 300 members in one process, over real QUIC: costs that grow with the square of the
//! members show here.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

use std::process::{Command, Stdio};

/// One of 300 nodes dies; it and no other is written, by production agents and
/// aggregators over 600 real sockets.
#[test]
fn three_hundred_members_form_and_find_the_one_that_died() {
    let output = Command::new(env!("CARGO_BIN_EXE_swimlet"))
        .args(["demo", "--json", "--nodes", "297", "--kill", "1"])
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}\n{out}");
    let summary: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(summary["event"], "summary");
    assert_eq!(summary["nodes"], 297);
    assert_eq!(summary["false_writes"], 0);
    assert_eq!(summary["killed"].as_array().map(Vec::len), Some(1));
}
