//! The components' flags, processes and readiness.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::Api;

use super::{ControlPlane, flag};
use crate::binary::Component;
use crate::process::Process;
use crate::wait::eventually;

/// Ready in 4 s on an idle machine of 2 cores; this is for a busy one.
const START_DEADLINE: Duration = Duration::from_mins(2);

/// The processes of the control plane, as last started.
#[derive(Default)]
pub(super) struct Services {
    pub(super) etcd: Option<Process>,
    pub(super) api_server: Option<Process>,
    pub(super) controller_manager: Option<Process>,
}

/// Where the components listen.
#[derive(Clone, Copy)]
pub(super) struct Ports {
    pub(super) etcd: u16,
    pub(super) etcd_peer: u16,
    pub(super) api_server: u16,
}

impl ControlPlane {
    pub(super) fn start_etcd(&self) -> Result<()> {
        let address = self.host.address();
        let client = format!("http://{address}:{}", self.ports.etcd);
        let peer = format!("http://{address}:{}", self.ports.etcd_peer);
        let mut command = Component::Etcd.command()?;
        command
            .arg("--name=rig")
            .arg(flag("data-dir", &self.workdir.path().join("etcd")))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=rig={peer}"))
            // The data need not outlive the test.
            .arg("--unsafe-no-fsync");
        self.services().etcd = Some(self.host.spawn("etcd", &command)?);
        Ok(())
    }

    pub(super) fn start_api_server(&self) -> Result<()> {
        let file = |name: &str| self.workdir.path().join(name);
        let address = self.host.address();
        let mut command = Component::ApiServer.command()?;
        command
            .arg(format!(
                "--etcd-servers=http://{address}:{}",
                self.ports.etcd
            ))
            .arg(format!("--bind-address={address}"))
            .arg(format!("--secure-port={}", self.ports.api_server))
            .arg(flag("cert-dir", &file("api-server")))
            .arg(flag("tls-cert-file", &file("kube-apiserver.crt")))
            .arg(flag("tls-private-key-file", &file("kube-apiserver.key")))
            .arg(flag("client-ca-file", &self.ca_file()))
            .arg(flag("token-auth-file", &file("tokens.csv")))
            .arg("--authorization-mode=Node,RBAC")
            .arg("--enable-admission-plugins=NodeRestriction")
            // It would wait for token controllers that do not run here.
            .arg("--disable-admission-plugins=ServiceAccount")
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(flag(
                "service-account-key-file",
                &file("service-accounts.pub"),
            ))
            .arg(flag(
                "service-account-signing-key-file",
                &file("service-accounts.key"),
            ))
            // Outside the subnets that hosts are given.
            .arg("--service-cluster-ip-range=10.255.0.0/24")
            .arg("--endpoint-reconciler-type=none")
            .arg("--allow-privileged")
            .arg(flag("audit-policy-file", &file("audit-policy.json")))
            .arg(flag("audit-log-path", &self.audit_file()))
            // One file: rotation would hide its beginning.
            .arg("--audit-log-maxsize=10000")
            // An answered request is in the log.
            .arg("--audit-log-mode=blocking")
            .args(&self.options.api_server_flags);
        self.services().api_server = Some(self.host.spawn("kube-apiserver", &command)?);
        Ok(())
    }

    pub(super) fn start_controller_manager(&self) -> Result<()> {
        let kubeconfig = self.named_kubeconfig(
            "kube-controller-manager",
            "system:kube-controller-manager",
            "system:masters",
        )?;
        let seconds = |flag: &str, duration: Duration| format!("--{flag}={}s", duration.as_secs());
        let options = &self.options;
        let mut command = Component::ControllerManager.command()?;
        command
            .arg(flag("kubeconfig", &kubeconfig))
            .arg("--leader-elect=false")
            .arg("--use-service-account-credentials=false")
            // Its own port serves nothing that a test reads.
            .arg("--secure-port=0")
            .arg(format!("--controllers={}", options.controllers.join(",")))
            .arg(seconds(
                "node-monitor-grace-period",
                options.node_monitor_grace_period,
            ))
            .arg(seconds(
                "node-startup-grace-period",
                options.node_startup_grace_period,
            ))
            .args(&options.controller_manager_flags);
        let process = self.host.spawn("kube-controller-manager", &command)?;
        self.services().controller_manager = Some(process);
        Ok(())
    }

    /// Waits for `/readyz` and for the namespaces that the API server makes
    /// after it.
    pub(super) async fn wait_ready(&self) -> Result<()> {
        let client = self.client_for_admin().await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        eventually(START_DEADLINE, "the API server to be ready", async || {
            let services = self.service_list();
            if let Some(Err(ended)) = services
                .iter()
                .map(Process::ensure_running)
                .find(Result::is_err)
            {
                return Ok(Some(Err(ended)));
            }
            let request = http_get("/readyz")?;
            client.request_text(request).await?;
            for name in ["default", "kube-system", "kube-node-lease"] {
                namespaces.get(name).await?;
            }
            Ok(Some(Ok(())))
        })
        .await?
    }

    fn service_list(&self) -> Vec<Process> {
        let services = self.services();
        let known = [&services.etcd, &services.api_server];
        known.into_iter().flatten().cloned().collect()
    }
}

impl Ports {
    /// In a namespace of its own, nothing else listens.
    pub(super) const USUAL: Self = Self {
        etcd: 2379,
        etcd_peer: 2380,
        api_server: 6443,
    };
}

/// A loopback address that only this process uses, and ports that only this rig
/// of it does: nothing has to be probed for being free, and nothing can take it
/// in between. The ports are below those that the kernel gives to clients.
pub(super) fn machine_place() -> (Ipv4Addr, Ports) {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [_, x, y, z] = std::process::id().to_be_bytes();
    // A pid has at most 22 bits.
    let address = Ipv4Addr::new(127, 128 | x, y, z);
    let first = 20_000 + 3 * (NEXT.fetch_add(1, Ordering::Relaxed) % 1_000);
    let ports = Ports {
        etcd: first,
        etcd_peer: first + 1,
        api_server: first + 2,
    };
    (address, ports)
}

fn http_get(path: &str) -> Result<http::Request<Vec<u8>>> {
    http::Request::get(path)
        .body(Vec::new())
        .context("cannot build a request")
}
