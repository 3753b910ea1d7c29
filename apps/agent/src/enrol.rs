use crate::config::Config;
use anyhow::{Context, Result};
use std::fs;
use std::io::{Read, stdin};
use std::path::Path;

/// Gets the node's certificate for a one-time token, in place of the one that it may have had.
pub(crate) fn enrol(config: &Config, token: &Path) -> Result<()> {
    let controller =
        config.controller.as_ref().context("the configuration has no [controller] to enrol with")?;
    let token = read(token)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let identity = runtime.block_on(hawser_client::enrol(&controller.urls, &token))?;
    let node = identity.node();
    anyhow::ensure!(
        node.as_str() == config.name,
        "the token enrols the node {node}, and this one is called {}: the token is used up, make another one",
        config.name
    );
    identity.store(&controller.state)?;
    println!("{node} is enrolled; its certificate is in {}", controller.state.display());
    Ok(())
}

fn read(token: &Path) -> Result<String> {
    if token == Path::new("-") {
        let mut text = String::new();
        stdin().read_to_string(&mut text).context("cannot read the token from standard input")?;
        return Ok(text);
    }
    fs::read_to_string(token).with_context(|| format!("cannot read the token {}", token.display()))
}
