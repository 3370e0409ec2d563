//! An agent that lies: as an observer, as a co-observer and as a verifier.

use std::time::Duration;

use swimlet_protocol::frame::{
    AgentAnswer, Answer, Claim, Finding, PortAnswer, ProbeOutcome, ProbeReport,
};
use swimlet_protocol::{Bounded, Frame, Role};
use swimlet_roles::member::Input;

use crate::process::Local;
use crate::record::MemberId;
use crate::world::World;

/// Between two salvos.
const EVERY: Duration = Duration::from_secs(1);
/// How long it says that everybody has been silent.
const SILENT_MS: u32 = 6_000;

impl World {
    /// A frame as a member speaks it.
    pub(crate) fn spoken(&self, from: MemberId, mut frame: Frame) -> Frame {
        if self.processes[from.0 as usize].lies == 0 {
            return frame;
        }
        match &mut frame {
            Frame::ProbeReport(ProbeReport { outcome, .. }) => *outcome = ProbeOutcome::NotReached,
            Frame::Verified(verified) => {
                let answers = verified.answers.iter().map(|answer| Answer {
                    agent: AgentAnswer::Silent,
                    agent_baseline: true,
                    port: PortAnswer::Silent,
                    port_baseline: true,
                    ..*answer
                });
                let mut answers = answers.collect::<Vec<_>>().into_iter();
                verified.health = 0;
                verified.answers = Bounded::fill(&mut answers);
            }
            _ => {}
        }
        frame
    }

    /// A liar accuses everybody, to every aggregator.
    pub(crate) fn spread_lies(&mut self, member: MemberId) {
        let process = &self.processes[member.0 as usize];
        if process.lies == 0 {
            return;
        }
        let Some(life) = &process.life else {
            return;
        };
        let me = process.key;
        let lie = |about: swimlet_mesh::Member| Claim {
            accuser: me,
            subject: about.key,
            generation: about.record.generation,
            finding: Finding::Missed {
                silent_ms: SILENT_MS,
                indirect: false,
            },
            age_ms: 0,
            health: 0,
        };
        let agents = life
            .member
            .mesh()
            .members()
            .filter(|about| about.record.role == Role::Agent);
        let lies: Vec<Claim> = agents.map(lie).collect();
        let mut lies = lies.into_iter().peekable();
        while lies.peek().is_some() {
            let frame = Frame::Claims(Bounded::fill(&mut lies));
            for aggregator in self.aggregators() {
                let to = self.key_of(aggregator);
                let frame = frame.clone();
                self.feed(member, Input::Send { to, frame });
            }
        }
        self.after(member, EVERY, Local::Lie);
    }
}
