//! A real Prometheus with the shipped rules.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::mesh::Process;

pub(crate) struct Prometheus {
    address: SocketAddr,
    _process: Process,
}

/// One series of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) value: String,
}

impl Prometheus {
    /// Starts it in `folder`; it scrapes and evaluates every second.
    pub(crate) fn start(folder: &Path, targets: &[SocketAddr], address: SocketAddr) -> Self {
        let rules = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../daemonset/monitoring/alerts.yaml"
        );
        let targets: Vec<_> = targets.iter().map(SocketAddr::to_string).collect();
        // JSON is YAML.
        let config = serde_json::json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules],
            "scrape_configs": [
                {"job_name": "any-name", "static_configs": [{"targets": targets}]},
            ],
        });
        let file = folder.join("prometheus.yaml");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=warn");
        Self {
            address,
            _process: Process::start(&command),
        }
    }

    /// What the query says now.
    pub(crate) async fn query(&self, expr: &str) -> Result<Vec<Series>> {
        let body = format!("query={}", encoded(expr));
        let answer = self.post("/api/v1/query", &body).await?;
        ensure!(answer["status"] == "success", "{expr}: {answer}");
        let found = &answer["data"]["result"];
        // A scalar is [time, value], a vector a list of series.
        let found = found.as_array().context("no result")?;
        found
            .iter()
            .map(|series| {
                let value = series["value"][1].as_str().context("no value")?;
                Ok(Series {
                    value: value.to_owned(),
                })
            })
            .collect()
    }

    /// HTTP/1.0, so that the answer ends with the connection and comes in one piece.
    async fn post(&self, path: &str, body: &str) -> Result<Value> {
        let mut stream = TcpStream::connect(self.address).await?;
        let request = format!(
            "POST {path} HTTP/1.0\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
        serde_json::from_str(body).with_context(|| format!("no JSON: {body}"))
    }
}

/// Percent-encoded for a form.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}
