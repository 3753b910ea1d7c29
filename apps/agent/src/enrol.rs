use crate::config::Config;
use anyhow::{Context, Result};
use hawser_control::Name;
use std::fs;
use std::io::{Read, stdin};
use std::path::Path;

/// Obtains the node's certificate with a one-time token. It replaces an earlier one.
pub(crate) fn enrol(config: &Config, token: &Path) -> Result<()> {
    let controller = config
        .controller
        .as_ref()
        .context("the configuration has no [controller] to enrol with")?;
    let token = read(token)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let node: Name = config.name.parse().context("the node's name")?;
    let enrolment = hawser_client::enrol_in(&controller.state, &node, &controller.urls, &token);
    runtime.block_on(enrolment)?;
    println!(
        "{node} is enrolled; its certificate is in {}",
        controller.state.display()
    );
    Ok(())
}

fn read(token: &Path) -> Result<String> {
    if token == Path::new("-") {
        let mut text = String::new();
        stdin()
            .read_to_string(&mut text)
            .context("cannot read the token from standard input")?;
        return Ok(text);
    }
    fs::read_to_string(token).with_context(|| format!("cannot read the token {}", token.display()))
}
