use crate::apply::Wanted;
use crate::output::Output;
use crate::resource::{NodeSettings, Resource};
use anyhow::{Context, Result};
use hawser_client::OperatorClient;
use hawser_model::Name;
use hawser_model::resource::Tenant;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Write tenants, settings of tunnel clients, flows and tracks in the form that `apply` takes
///
/// Nodes, certificates, tokens and secrets are not exported.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hawser ctl export --tenant acme --out backup")]
pub(crate) struct Args {
    /// Only this tenant
    #[arg(long)]
    tenant: Option<Name>,
    /// Directory for one file for each tenant, TENANT.toml, which is replaced [default: standard
    /// output, as one file]
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
}

/// A file that was written.
#[derive(Serialize)]
struct Written {
    tenant: Name,
    file: PathBuf,
    tunnel_settings: usize,
    flows: usize,
    tracks: usize,
}

pub(crate) async fn run(args: &Args, client: &OperatorClient, output: Output) -> Result<()> {
    let mut all = Wanted {
        tenants: client.tenants().all().await?,
        tunnel_settings: NodeSettings::all(client).await?,
        flows: client.flows().all().await?,
        tracks: client.tracks().all().await?,
    };
    if let Some(tenant) = &args.tenant {
        // The error for a tenant that does not exist.
        client.tenant(tenant).await?;
        all = all.of_tenant(tenant);
    }
    match &args.out {
        Some(folder) => write_files(&all, folder, output),
        None if output.json => output.one(&all, &[]),
        None => output.text(&toml::to_string(&all)?),
    }
}

fn write_files(all: &Wanted, folder: &Path, output: Output) -> Result<()> {
    hawser_io::file::create_folder(folder, 0o777)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let written: Result<Vec<Written>> = all
        .tenants
        .iter()
        .map(|tenant| write_file(&all.of_tenant(&tenant.name), tenant, folder))
        .collect();
    output.list(
        &written?,
        &["tenant", "settings", "flows", "tracks", "file"],
        |written| {
            vec![
                written.tenant.to_string(),
                written.tunnel_settings.to_string(),
                written.flows.to_string(),
                written.tracks.to_string(),
                written.file.display().to_string(),
            ]
        },
    )
}

fn write_file(part: &Wanted, tenant: &Tenant, folder: &Path) -> Result<Written> {
    let file = folder.join(format!("{}.toml", tenant.name));
    let text = toml::to_string(part)?;
    hawser_io::file::replace(&file, text.as_bytes(), 0o644)
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(Written {
        tenant: tenant.name.clone(),
        tunnel_settings: part.tunnel_settings.len(),
        flows: part.flows.len(),
        tracks: part.tracks.len(),
        file,
    })
}
