//! Scenarios in virtual time. The numbers are those of the project's list of
//! failure scenarios.

mod chaos;
mod crash;
mod doubt;
mod kubelet;
mod leader;
mod mass;
mod members;
mod pause;
mod switches;
mod village;
mod voiding;
mod withdraw;
