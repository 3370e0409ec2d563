use std::os::unix::process::ExitStatusExt;

use super::*;

const DEADLINE: Duration = Duration::from_secs(30);

fn sleeper(name: &str) -> (Process, PathBuf) {
    let log = std::env::temp_dir().join(format!("{name}-{}.log", std::process::id()));
    let mut command = Command::new("sh");
    command.args(["-c", "echo started; exec sleep 1000"]);
    (Process::spawn(name, &command, &log).unwrap(), log)
}

/// The state letter of proc(5): `S` sleeps, `T` is stopped.
fn state(process: &Process) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

async fn in_state(process: &Process, wanted: char) {
    crate::eventually(DEADLINE, "the process' state", async || {
        Ok((state(process) == Some(wanted)).then_some(()))
    })
    .await
    .unwrap();
}

/// Guards the faults of processes: each signal arrives, a frozen process still
/// counts as running, and the log holds what was written.
#[tokio::test]
async fn a_process_can_be_frozen_thawed_and_ended() {
    let (process, log) = sleeper("rig-frozen");
    crate::eventually(DEADLINE, "the first line", async || {
        Ok((process.log() == "started\n").then_some(()))
    })
    .await
    .unwrap();
    process.freeze().unwrap();
    in_state(&process, 'T').await;
    assert!(process.is_running());
    process.thaw().unwrap();
    in_state(&process, 'S').await;
    process.terminate().unwrap();
    let status = process.wait(DEADLINE).await.unwrap();
    assert_eq!(status.signal(), Some(15));
    assert!(!process.is_running());
    fs::remove_file(log).unwrap();
}

/// Guards that a signal never goes to a pid that may have passed on: an ended
/// process takes none, and killing it again is no error.
#[tokio::test]
async fn an_ended_process_takes_no_signal() {
    let (process, log) = sleeper("rig-ended");
    let id = ProcessId::of(process.pid()).unwrap();
    assert!(id.is_alive());
    process.freeze().unwrap();
    process.kill().unwrap();
    assert!(!id.is_alive());
    assert!(process.freeze().is_err());
    assert!(process.terminate().is_err());
    process.kill().unwrap();
    fs::remove_file(log).unwrap();
}

/// Guards the sweep: another process that got the pid is not the noted one.
#[test]
fn a_reused_pid_is_another_process() {
    let id = ProcessId::of(std::process::id()).unwrap();
    assert!(id.is_alive());
    let earlier = ProcessId {
        start_ticks: id.start_ticks - 1,
        ..id
    };
    assert!(!earlier.is_alive());
}

/// Guards the way from a start error to its cause.
#[test]
fn a_missing_tool_names_its_package() {
    let error = run(&mut Command::new("swimlet-no-such-tool"), "no-such-package").unwrap_err();
    assert_eq!(
        error.to_string(),
        "swimlet-no-such-tool is missing: install the package no-such-package"
    );
}
