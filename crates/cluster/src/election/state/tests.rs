//! Elections in virtual time: a model of the API server, candidates with clocks of their own.

use std::collections::BTreeMap;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// The Lease object in the model of the API server.
#[derive(Clone, Debug, Default)]
struct Store {
    record: Option<(u64, Record)>,
    /// Changed by others, as an annotation is: the version moves, the record does not.
    version: u64,
    writes: u64,
}

/// A call under way.
#[derive(Clone, Debug)]
struct Call {
    action: Action,
    sent: Moment,
    /// What is in the record's renewTime, by the candidate's own wall clock.
    wall: i64,
    base: u64,
    arrives: Moment,
    answer: Option<(Moment, Seen, u64)>,
}

struct Process {
    election: Election,
    me: String,
    /// How far its monotonic clock is ahead of the simulation's: clocks share no origin.
    ahead: Duration,
    /// How far its wall clock is off.
    skew: i64,
    version: u64,
    call: Option<Call>,
    frozen_until: Moment,
    dead: bool,
    /// Whether it reaches the server.
    cut_off: bool,
}

struct Simulation {
    now: Moment,
    store: Store,
    processes: Vec<Process>,
    latency: Duration,
    /// Who believed to lead at each step, as (from, to, who).
    leaders: BTreeMap<String, Vec<(Moment, Moment)>>,
}

impl Simulation {
    fn new(count: usize, seed: u64) -> Self {
        let start = Moment::ORIGIN + Duration::from_secs(1000);
        let processes = (0..count)
            .map(|index| {
                let ahead = Duration::from_secs(index as u64 * 5000);
                let me = format!("agg-{index}");
                let seed = seed.wrapping_mul(31).wrapping_add(index as u64);
                let election = Election::new(start + ahead, me.clone(), Timing::DEFAULT, seed);
                Process {
                    election,
                    me,
                    ahead,
                    skew: i64::try_from(index).unwrap() * -86_400_000_000,
                    version: 0,
                    call: None,
                    frozen_until: Moment::ORIGIN,
                    dead: false,
                    cut_off: false,
                }
            })
            .collect();
        Self {
            now: start,
            store: Store::default(),
            processes,
            latency: 5 * MS,
            leaders: BTreeMap::new(),
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            for index in 0..self.processes.len() {
                self.step(index);
            }
            self.note_leaders();
            self.now += 10 * MS;
        }
    }

    fn step(&mut self, index: usize) {
        let (now, latency) = (self.now, self.latency);
        let process = &mut self.processes[index];
        // What was sent arrives also when the sender is frozen or dead by then.
        if let Some(call) = &mut process.call
            && call.answer.is_none()
            && call.arrives <= now
        {
            let (seen, version) = if process.cut_off {
                (Seen::Failed { after: None }, process.version)
            } else {
                self.store.serve(&process.me, call)
            };
            let wait = if process.cut_off {
                Timing::DEFAULT.call
            } else {
                latency
            };
            call.answer = Some((now + wait, seen, version));
        }
        if process.dead || process.frozen_until > now {
            return;
        }
        let local = now + process.ahead;
        if let Some(Call {
            answer: Some((at, seen, version)),
            action,
            sent,
            ..
        }) = &process.call
        {
            if *at > now {
                return;
            }
            process.version = *version;
            process.election.handle(*sent, local, *action, seen.clone());
            process.call = None;
        }
        if process.call.is_some() {
            return;
        }
        match process.election.poll(local) {
            Action::Sleep(_) | Action::Stopped => {}
            action => {
                process.call = Some(Call {
                    action,
                    sent: local,
                    wall: i64::try_from(now.as_micros()).unwrap() + process.skew,
                    base: process.version,
                    arrives: now + latency,
                    answer: None,
                });
            }
        }
    }

    fn note_leaders(&mut self) {
        let now = self.now;
        let leading: Vec<String> = self
            .processes
            .iter()
            .filter(|process| !process.dead && process.frozen_until <= now)
            .filter(|process| process.election.leads_until(now + process.ahead).is_some())
            .map(|process| process.me.clone())
            .collect();
        // The heart of it: whoever could act, is alone in it.
        assert!(leading.len() <= 1, "{leading:?} lead together at {now}");
        for me in leading {
            let spans = self.leaders.entry(me).or_default();
            match spans.last_mut() {
                Some((_, to)) if *to + 10 * MS >= now => *to = now,
                _ => spans.push((now, now)),
            }
        }
    }

    fn leader(&self) -> Option<usize> {
        let now = self.now.before(10 * MS);
        self.processes.iter().position(|process| {
            !process.dead
                && process.frozen_until <= now
                && process.election.leads_until(now + process.ahead).is_some()
        })
    }

    /// Runs until somebody leads, for `most` at most; how long it took.
    fn until_led(&mut self, most: Duration) -> Duration {
        let start = self.now;
        while self.leader().is_none() {
            assert!(self.now.since(start) < most, "nobody leads after {most:?}");
            self.run(10 * MS);
        }
        self.now.since(start)
    }
}

impl Store {
    fn serve(&mut self, me: &str, call: &Call) -> (Seen, u64) {
        let held = self.record.clone();
        let (version, record) = match (call.action, held) {
            (Action::Read, None) => return (Seen::Absent, 0),
            (Action::Read, Some((version, record))) => {
                return (Seen::Record(record), version);
            }
            (Action::Create, Some(_)) => return (Seen::Conflict, 0),
            (Action::Create, None) => (0, None),
            (_, None) => return (Seen::Absent, 0),
            (_, Some((version, record))) => (version, Some(record)),
        };
        if call.action != Action::Create && version != call.base {
            return (Seen::Conflict, call.base);
        }
        let transitions = record.as_ref().map_or(0, |record| record.transitions);
        let release = call.action == Action::Release;
        let written = Record {
            holder: if release {
                String::new()
            } else {
                me.to_owned()
            },
            duration: if release {
                Duration::from_secs(1)
            } else {
                Timing::DEFAULT.lease
            },
            renewed: Some(call.wall),
            acquired: match call.action {
                Action::Renew => record.and_then(|record| record.acquired),
                _ => Some(call.wall),
            },
            transitions: transitions + i32::from(call.action == Action::Acquire),
        };
        self.version += 1;
        self.writes += 1;
        self.record = Some((self.version, written.clone()));
        (Seen::Record(written), self.version)
    }

    fn annotate(&mut self) {
        self.version += 1;
        if let Some((version, _)) = &mut self.record {
            *version = self.version;
        }
    }
}

/// Guards that one of three leads, that it stays, and what that costs the API server.
#[test]
fn one_of_three_leads_and_stays() {
    for seed in 0..20 {
        let mut simulation = Simulation::new(3, seed);
        simulation.until_led(Duration::from_secs(1));
        let leader = simulation.leader();
        let writes = simulation.store.writes;
        simulation.run(Duration::from_secs(600));
        assert_eq!(simulation.leader(), leader);
        assert_eq!(simulation.leaders.len(), 1);
        // A renewal every 2 s: 0.5 writes/s.
        assert!((295..=301).contains(&(simulation.store.writes - writes)));
    }
}

/// Guards the takeover time after a SIGKILL, under clocks that are days apart.
#[test]
fn a_killed_leader_is_followed_within_14_s_and_not_before_its_lease_ran_out() {
    for seed in 0..50 {
        let mut simulation = Simulation::new(3, seed);
        simulation.run(Duration::from_secs(20) + Duration::from_millis(137 * seed));
        let leader = simulation.leader().unwrap();
        simulation.processes[leader].dead = true;
        let took = simulation.until_led(Duration::from_secs(14));
        assert!(took >= Duration::from_secs(7), "{took:?}");
        assert_ne!(simulation.leader(), Some(leader));
        assert_eq!(simulation.store.record.as_ref().unwrap().1.transitions, 1);
    }
}

/// Scenario 21: a leader that is frozen and resumes never believes it leads past its deadline,
/// and its successor is alone.
#[test]
fn a_frozen_leader_has_stopped_when_it_resumes() {
    for seed in 0..50 {
        let mut simulation = Simulation::new(3, seed);
        // Slow calls, so that it is frozen at any phase of one: before, while and after it.
        simulation.latency = 400 * MS;
        simulation.run(Duration::from_secs(20) + Duration::from_millis(seed * 41));
        let leader = simulation.leader().unwrap();
        simulation.processes[leader].frozen_until = simulation.now + Duration::from_secs(30);
        simulation.run(Duration::from_secs(60));
        let successor = simulation.leader().unwrap();
        assert_ne!(successor, leader);
        let me = &simulation.processes[leader].me;
        assert_eq!(
            simulation.leaders[me].len(),
            1,
            "it led again after it resumed"
        );
    }
}

/// Guards that a leader cut off from the API server stops by itself in time.
#[test]
fn a_leader_that_cannot_renew_stops_before_another_may_follow() {
    for seed in 0..50 {
        let mut simulation = Simulation::new(3, seed);
        simulation.run(Duration::from_secs(20) + Duration::from_millis(seed * 97));
        let leader = simulation.leader().unwrap();
        simulation.processes[leader].cut_off = true;
        let cut = simulation.now;
        simulation.run(Duration::from_secs(30));
        let me = simulation.processes[leader].me.clone();
        let stopped = simulation.leaders[&me].last().unwrap().1;
        assert!(stopped.since(cut) <= Timing::DEFAULT.renew_deadline);
        assert_ne!(simulation.leader(), Some(leader));
        assert!(simulation.leader().is_some());
    }
}

/// Guards that a clean stop is followed at once.
#[test]
fn a_stopped_leader_releases_and_is_followed_within_seconds() {
    for seed in 0..20 {
        let mut simulation = Simulation::new(3, seed);
        simulation.run(Duration::from_secs(20));
        let leader = simulation.leader().unwrap();
        let local = simulation.now + simulation.processes[leader].ahead;
        simulation.processes[leader].election.stop(local);
        assert_eq!(simulation.leader(), None, "it stops before it releases");
        simulation.until_led(Duration::from_secs(4));
        simulation.run(Duration::from_secs(1));
        let process = &mut simulation.processes[leader];
        assert_eq!(
            process.election.poll(simulation.now + process.ahead),
            Action::Stopped
        );
    }
}

#[test]
fn a_leader_that_steps_down_leaves_the_lease_to_others_for_a_while() {
    let mut simulation = Simulation::new(3, 1);
    simulation.run(Duration::from_secs(20));
    let leader = simulation.leader().unwrap();
    let local = simulation.now + simulation.processes[leader].ahead;
    simulation.processes[leader].election.step_down(local);
    simulation.until_led(Duration::from_secs(4));
    assert_ne!(simulation.leader(), Some(leader));
}

/// Guards a cluster of one aggregator: nobody else comes, so it comes back.
#[test]
fn a_lone_candidate_that_stepped_down_comes_back() {
    let mut simulation = Simulation::new(1, 1);
    simulation.run(Duration::from_secs(20));
    let local = simulation.now + simulation.processes[0].ahead;
    simulation.processes[0].election.step_down(local);
    simulation.run(Duration::from_secs(19));
    assert_eq!(simulation.leader(), None);
    simulation.until_led(Duration::from_secs(5));
}

#[test]
fn who_does_not_stand_never_leads_and_does_not_ask_in_a_busy_loop() {
    let mut simulation = Simulation::new(2, 1);
    let local = simulation.now;
    simulation.processes[0].election.stand(local, false);
    simulation.until_led(Duration::from_secs(1));
    assert_eq!(simulation.leader(), Some(1));
    simulation.processes[1].dead = true;
    let mut reads = 0;
    for _ in 0..6000 {
        let idle = simulation.processes[0].call.is_none();
        simulation.run(10 * MS);
        reads += u32::from(idle && simulation.processes[0].call.is_some());
    }
    assert!(reads <= 31, "{reads} looks within 60 s");
    assert_eq!(simulation.leader(), None);
}

/// Guards the pause: an annotation on the Lease moves its version, and costs no leadership.
#[test]
fn a_leader_survives_changes_of_the_lease_that_are_none_of_the_record() {
    let mut simulation = Simulation::new(3, 1);
    simulation.run(Duration::from_secs(20));
    let leader = simulation.leader();
    for _ in 0..10 {
        simulation.store.annotate();
        simulation.run(Duration::from_secs(3));
        assert_eq!(simulation.leader(), leader);
    }
    assert_eq!(simulation.leaders.len(), 1);
}

/// Guards the same for a candidate: the version is no sign of life.
#[test]
fn annotating_a_dead_leaders_lease_does_not_keep_it_alive() {
    let mut simulation = Simulation::new(2, 1);
    simulation.run(Duration::from_secs(20));
    let leader = simulation.leader().unwrap();
    simulation.processes[leader].dead = true;
    let mut waited = Duration::ZERO;
    while simulation.leader().is_none() {
        simulation.store.annotate();
        simulation.run(Duration::from_millis(500));
        waited += Duration::from_millis(500);
        assert!(waited < Duration::from_secs(15));
    }
}

#[test]
fn a_deleted_lease_is_made_anew() {
    let mut simulation = Simulation::new(3, 1);
    simulation.run(Duration::from_secs(20));
    simulation.store.record = None;
    simulation.run(Duration::from_secs(5));
    assert!(simulation.leader().is_some());
    assert!(simulation.store.record.is_some());
}

/// Guards against leadership from an answer that came too late to be worth anything.
#[test]
fn an_answer_that_was_long_under_way_makes_no_leader() {
    let start = Moment::ORIGIN + Duration::from_secs(100);
    let mut election = Election::new(start, "me".to_owned(), Timing::DEFAULT, 1);
    assert_eq!(election.poll(start), Action::Read);
    election.handle(start, start, Action::Read, Seen::Absent);
    assert_eq!(election.poll(start), Action::Create);
    let late = start + Duration::from_secs(30);
    let mine = Record {
        holder: "me".to_owned(),
        duration: Timing::DEFAULT.lease,
        renewed: Some(1),
        acquired: Some(1),
        transitions: 0,
    };
    election.handle(start, late, Action::Create, Seen::Record(mine));
    assert_eq!(election.leads_until(late), None);
    assert_eq!(election.poll(late), Action::Read);
}

/// Guards against a write of unknown outcome that leaves a record nobody renews.
#[test]
fn a_candidate_that_is_stopped_with_a_write_in_doubt_looks_and_releases() {
    let now = Moment::ORIGIN + Duration::from_secs(100);
    let mut election = Election::new(now, "me".to_owned(), Timing::DEFAULT, 1);
    election.handle(now, now, Action::Read, Seen::Absent);
    assert_eq!(election.poll(now), Action::Create);
    election.stop(now);
    election.handle(now, now, Action::Create, Seen::Failed { after: None });
    let later = now + Duration::from_secs(5);
    assert_eq!(election.poll(later), Action::Read);
    let mine = Record {
        holder: "me".to_owned(),
        duration: Timing::DEFAULT.lease,
        renewed: None,
        acquired: None,
        transitions: 0,
    };
    election.handle(later, later, Action::Read, Seen::Record(mine));
    assert_eq!(election.poll(later), Action::Release);
    election.handle(later, later, Action::Release, Seen::Conflict);
    assert_eq!(election.poll(later), Action::Read);
}
