//! The control plane itself: etcd, the API server, the controller manager.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Node as ApiNode;
use kube::api::Api;

use self::services::{Ports, Services, machine_place};
use crate::audit::{self, AuditEvent, AuditStage};
use crate::binary::Component;
use crate::host::Host;
use crate::netns::Network;
use crate::node::{Node, NodeSpec};
use crate::options::{NetworkMode, Options};
use crate::pki::{self, Authority};
use crate::process::Process;
use crate::user::User;
use crate::wait::eventually;
use crate::workdir::Workdir;

mod credentials;
mod services;

/// A hollow kubelet is Ready after 2–12 s.
const NODE_DEADLINE: Duration = Duration::from_mins(2);
/// No kubectl command of a test takes longer.
const KUBECTL_DEADLINE: Duration = Duration::from_mins(1);

/// A running control plane. Dropping it ends every process and removes every
/// namespace and file; if the test is panicking, its logs are kept and their
/// path is printed (with `SWIMLET_RIG_KEEP` set, always).
pub struct ControlPlane {
    options: Options,
    host: Host,
    network: Option<Network>,
    ports: Ports,
    authority: Authority,
    admin_token: String,
    hosts: Mutex<Vec<Host>>,
    services: Mutex<Services>,
    workdir: Arc<Workdir>,
}

impl ControlPlane {
    /// Starts a control plane and waits until it is ready for requests.
    ///
    /// # Errors
    /// When a component is missing, ends, or is not ready within two minutes;
    /// the logs are kept then.
    pub async fn start(options: Options) -> Result<Self> {
        // Built before anything is made: it may take minutes.
        let component = tokio::task::spawn_blocking(|| Component::ApiServer.command());
        component.await??;
        let workdir = Arc::new(Workdir::create()?);
        let control_plane = Self::lay_out(options, Arc::clone(&workdir))?;
        if let Err(error) = control_plane.boot().await {
            workdir.keep();
            return Err(error);
        }
        Ok(control_plane)
    }

    /// The host that the control plane runs on, for further processes there.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Where the API server listens (HTTPS).
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.host.address()), self.ports.api_server)
    }

    /// The certificate authority of the API server and of client certificates (PEM).
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.workdir.path().join("ca.crt")
    }

    /// The rig's folder, deleted with it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.workdir.path()
    }

    /// The API server's process, as last started.
    ///
    /// # Errors
    /// Before it was started.
    pub fn api_server(&self) -> Result<Process> {
        let service = self.services().api_server.clone();
        service.ok_or_else(|| anyhow!("the API server was not started"))
    }

    /// The controller manager's process, as last started.
    ///
    /// # Errors
    /// When [`Options::controllers`] is empty.
    pub fn controller_manager(&self) -> Result<Process> {
        let service = self.services().controller_manager.clone();
        service.ok_or_else(|| anyhow!("this rig has no controllers: see Options::controllers"))
    }

    /// Kills the API server, if it runs, starts it anew and waits until it is ready.
    ///
    /// # Errors
    /// When it is not ready within two minutes.
    pub async fn restart_api_server(&self) -> Result<Process> {
        self.api_server()?.kill()?;
        self.start_api_server()?;
        self.wait_ready().await?;
        self.api_server()
    }

    /// Kills the controller manager, if it runs, and starts it anew: a failover.
    ///
    /// # Errors
    /// When [`Options::controllers`] is empty.
    pub async fn restart_controller_manager(&self) -> Result<Process> {
        self.controller_manager()?.kill()?;
        self.start_controller_manager()?;
        self.controller_manager()
    }

    /// Runs kubectl as the admin; returns its standard output.
    ///
    /// # Errors
    /// When it fails, with its standard error, or takes longer than a minute.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let kubeconfig = self.kubeconfig(&User::Admin).await?;
        let mut command = Component::Kubectl.command()?;
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(arguments)
            .stdin(Stdio::null());
        let output = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(KUBECTL_DEADLINE, output)
            .await
            .with_context(|| format!("kubectl {arguments:?} took longer than a minute"))??;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("kubectl {arguments:?} failed: {}", error.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The requests that the API server has answered so far, oldest first.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn audit(&self) -> Result<Vec<AuditEvent>> {
        let mut events = self.audit_stages()?;
        events.retain(|event| event.stage != AuditStage::ResponseStarted);
        Ok(events)
    }

    /// All audit events so far, among them the start of each watch.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn audit_stages(&self) -> Result<Vec<AuditEvent>> {
        audit::read(&self.audit_file())
    }

    /// Adds a host without a kubelet: the place of an aggregator.
    ///
    /// # Errors
    /// When the rig does not run in namespaces.
    pub fn add_host(&self, name: &str) -> Result<Host> {
        let network = self.network.as_ref().ok_or_else(|| {
            anyhow!("hosts live in network namespaces: start with Options::namespaces()")
        })?;
        if self.hosts().iter().any(|host| host.name() == name) {
            bail!("this rig has a host {name} already");
        }
        let leg = network.plug(&self.workdir, name)?;
        let host = Host::in_namespace(name, leg, &self.workdir)?;
        self.hosts().push(host.clone());
        Ok(host)
    }

    /// Adds a node and waits until it is Ready.
    ///
    /// # Errors
    /// When the rig does not run in namespaces, or the node is not Ready
    /// within two minutes.
    pub async fn add_node(&self, spec: &NodeSpec) -> Result<Node> {
        let node = self.start_node(spec)?;
        self.wait_node_ready(&node).await?;
        Ok(node)
    }

    /// Adds several nodes at once and waits until all are Ready.
    ///
    /// # Errors
    /// As for [`ControlPlane::add_node`].
    pub async fn add_nodes(&self, specs: &[NodeSpec]) -> Result<Vec<Node>> {
        let nodes: Vec<_> = specs
            .iter()
            .map(|spec| self.start_node(spec))
            .collect::<Result<_>>()?;
        for node in &nodes {
            self.wait_node_ready(node).await?;
        }
        Ok(nodes)
    }
}

impl ControlPlane {
    fn lay_out(options: Options, workdir: Arc<Workdir>) -> Result<Self> {
        let (network, host, ports) = match options.network {
            NetworkMode::Machine => {
                let (address, ports) = machine_place();
                let host = Host::on_machine("control-plane", address, &workdir)?;
                (None, host, ports)
            }
            NetworkMode::Namespaces => {
                let (network, leg) = Network::create(&workdir)?;
                let host = Host::in_namespace("control-plane", leg, &workdir)?;
                (Some(network), host, Ports::USUAL)
            }
        };
        Ok(Self {
            options,
            hosts: Mutex::new(vec![host.clone()]),
            host,
            network,
            ports,
            authority: Authority::new()?,
            admin_token: pki::random_token()?,
            services: Mutex::default(),
            workdir,
        })
    }

    async fn boot(&self) -> Result<()> {
        self.write_files()?;
        self.start_etcd()?;
        self.start_api_server()?;
        self.wait_ready().await?;
        if !self.options.controllers.is_empty() {
            self.start_controller_manager()?;
        }
        Ok(())
    }

    fn start_node(&self, spec: &NodeSpec) -> Result<Node> {
        let host = self.add_host(&spec.name)?;
        let user = User::node(&spec.name);
        let kubeconfig = self.certificate_kubeconfig(&user, "system:nodes")?;
        let mut command = Component::Kubelet.command()?;
        command
            .arg(flag("kubeconfig", &kubeconfig))
            .arg(flag("client-ca-file", &self.ca_file()))
            .arg(flag("root-dir", &host.folder().join("kubelet")))
            .arg(format!("--node-ip={}", host.address()))
            .arg(format!("--port={}", Node::KUBELET_PORT))
            .arg(format!("--healthz-port={}", Node::HEALTHZ_PORT))
            .args(spec.flags());
        Node::start(host, command)
    }

    async fn wait_node_ready(&self, node: &Node) -> Result<()> {
        let nodes: Api<ApiNode> = Api::all(self.client_for_admin().await?);
        let what = format!("node {} to be Ready", node.name());
        eventually(NODE_DEADLINE, &what, async || {
            if let Err(ended) = node.kubelet().ensure_running() {
                return Ok(Some(Err(ended)));
            }
            let status = nodes.get(node.name()).await?.status;
            let conditions = status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let ready = conditions
                .iter()
                .find(|condition| condition.type_ == "Ready");
            match ready {
                Some(ready) if ready.status == "True" => Ok(Some(Ok(()))),
                Some(ready) => bail!("{:?}: {:?}", ready.reason, ready.message),
                None => bail!("it has no Ready condition"),
            }
        })
        .await?
    }

    fn audit_file(&self) -> PathBuf {
        self.workdir.path().join("audit.log")
    }

    fn services(&self) -> MutexGuard<'_, Services> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hosts(&self) -> MutexGuard<'_, Vec<Host>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for host in self.hosts().iter().rev() {
            let _ = host.kill_all();
        }
        // The leg of the test process goes before the namespaces do.
        self.network = None;
        self.workdir.clean();
    }
}

fn flag(name: &str, path: &Path) -> std::ffi::OsString {
    let mut flag = std::ffi::OsString::from(format!("--{name}="));
    flag.push(path);
    flag
}
