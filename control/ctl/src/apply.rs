use crate::output::Output;
use crate::resource::{NodeSettings, Resource};
use crate::tenant;
use anyhow::{Context, Result, bail};
use hawser_client::OperatorClient;
use hawser_io::file::read_text;
use hawser_model::resource::{Flow, Tenant};
use hawser_model::track::Track;
use hawser_model::{Name, strict, with_unknown};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use toml::de::{DeArray, DeTable};

/// Create and change tenants, settings of tunnel clients, flows and tracks as described in files
///
/// Existing ones that differ are changed; what the files do not name is left alone, except with --prune. A
/// file has `tenants`, `flows` and `tracks`, each as printed by `show --json`, and `tunnel_settings`; `hawser
/// ctl export` writes such files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hawser ctl apply --file acme.toml --dry-run")]
pub(crate) struct Args {
    /// File with tenants, settings of tunnel clients, flows and tracks: TOML, or JSON if its name ends with
    /// .json ("-" reads standard input); may be repeated
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print what would change, without changing anything
    #[arg(long)]
    dry_run: bool,
    /// Also delete the settings of tunnel clients, flows and tracks of the tenants in the files that no
    /// file names. Prints what it would do, and does it only with --yes
    #[arg(long)]
    prune: bool,
    /// Delete without asking
    #[arg(long, requires = "prune", conflicts_with = "dry_run")]
    yes: bool,
}

/// The content of a file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    #[serde(default)]
    pub(crate) tenants: Vec<Tenant>,
    #[serde(default)]
    pub(crate) tunnel_settings: Vec<NodeSettings>,
    #[serde(default)]
    pub(crate) flows: Vec<Flow>,
    #[serde(default)]
    pub(crate) tracks: Vec<Track>,
}

impl Wanted {
    /// Returns a tenant and what belongs to it.
    pub(crate) fn of_tenant(&self, tenant: &Name) -> Wanted {
        fn of<T: Clone>(all: &[T], is_owned: impl Fn(&T) -> bool) -> Vec<T> {
            all.iter().filter(|one| is_owned(one)).cloned().collect()
        }
        Wanted {
            tenants: of(&self.tenants, |one| one.name == *tenant),
            tunnel_settings: of(&self.tunnel_settings, |one| one.tenant == *tenant),
            flows: of(&self.flows, |one| one.tenant == *tenant),
            tracks: of(&self.tracks, |one| one.tenant == *tenant),
        }
    }

    /// Adds the content of another file.
    fn add(&mut self, other: Wanted) {
        self.tenants.extend(other.tenants);
        self.tunnel_settings.extend(other.tunnel_settings);
        self.flows.extend(other.flows);
        self.tracks.extend(other.tracks);
    }

    /// Returns the tenants that the files name.
    fn owners(&self) -> HashSet<&Name> {
        let tenants = self.tenants.iter().map(|tenant| &tenant.name);
        let settings = self.tunnel_settings.iter().map(Resource::tenant);
        let flows = self.flows.iter().map(Resource::tenant);
        let tracks = self.tracks.iter().map(Resource::tenant);
        tenants.chain(settings).chain(flows).chain(tracks).collect()
    }
}

/// The outcome for one entry of a file.
#[derive(Debug, Serialize)]
struct Outcome {
    kind: &'static str,
    name: String,
    change: Change,
    /// The names of the fields that differ.
    fields: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    None,
    Created,
    Changed,
    Deleted,
}

pub(crate) async fn run(args: &Args, client: &OperatorClient, output: Output) -> Result<()> {
    let mut wanted = Wanted::default();
    for file in &args.files {
        wanted.add(read(file)?);
    }
    // Without --yes, nothing is done if something would be deleted.
    let mut is_plan = args.dry_run;
    let mut pruned = Vec::new();
    if args.prune {
        let owners = wanted.owners();
        pruned = prune(&wanted.flows, &owners, client, args.yes).await?;
        pruned.extend(prune(&wanted.tracks, &owners, client, args.yes).await?);
        pruned.extend(prune(&wanted.tunnel_settings, &owners, client, args.yes).await?);
        is_plan |= !args.yes && !pruned.is_empty();
    }
    let mut outcomes = apply_tenants(&wanted.tenants, client, is_plan).await?;
    outcomes.extend(apply(&wanted.tunnel_settings, client, is_plan).await?);
    outcomes.extend(apply(&wanted.flows, client, is_plan).await?);
    outcomes.extend(apply(&wanted.tracks, client, is_plan).await?);
    let count = pruned.len();
    outcomes.extend(pruned);
    output.list(&outcomes, &["kind", "name", "change"], |outcome| {
        vec![
            outcome.kind.to_owned(),
            outcome.name.clone(),
            describe(outcome, is_plan),
        ]
    })?;
    if is_plan && !args.dry_run {
        bail!(
            "nothing was changed, because {count} settings, flows and tracks would be deleted: add --yes to do it, or leave out --prune"
        );
    }
    Ok(())
}

/// Deletes the resources of the owners that are not wanted, if `is_allowed`. Returns them.
async fn prune<T: Resource>(
    wanted: &[T],
    owners: &HashSet<&Name>,
    client: &OperatorClient,
    is_allowed: bool,
) -> Result<Vec<Outcome>> {
    let kept: HashSet<String> = wanted.iter().map(T::name).collect();
    let mut outcomes = Vec::new();
    for found in T::all(client).await? {
        if !owners.contains(found.tenant()) || kept.contains(&found.name()) {
            continue;
        }
        if is_allowed {
            let deleted = found.delete(client).await;
            deleted.with_context(|| format!("{} {}", T::KIND, found.name()))?;
        }
        outcomes.push(Outcome {
            kind: T::KIND,
            name: found.name(),
            change: Change::Deleted,
            fields: Vec::new(),
        });
    }
    Ok(outcomes)
}

async fn apply_tenants(
    wanted: &[Tenant],
    client: &OperatorClient,
    dry_run: bool,
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    let current = client.tenants().all().await?;
    let current: HashMap<_, _> = current
        .iter()
        .map(|tenant| (&tenant.name, tenant))
        .collect();
    for tenant in wanted {
        let (change, fields) = compare(current.get(&tenant.name).copied(), tenant)?;
        if !dry_run {
            apply_tenant(tenant, change, client)
                .await
                .with_context(|| format!("tenant {}", tenant.name))?;
        }
        outcomes.push(Outcome {
            kind: "tenant",
            name: tenant.name.to_string(),
            change,
            fields,
        });
    }
    Ok(outcomes)
}

async fn apply_tenant(wanted: &Tenant, change: Change, client: &OperatorClient) -> Result<()> {
    match change {
        Change::Created => drop(client.create_tenant(wanted).await?),
        Change::Changed => drop(tenant::change(client, &wanted.name, &wanted.description).await?),
        Change::None | Change::Deleted => {}
    }
    Ok(())
}

async fn apply<T: Resource>(
    wanted: &[T],
    client: &OperatorClient,
    dry_run: bool,
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    if wanted.is_empty() {
        return Ok(outcomes);
    }
    let current = T::all(client).await?;
    let current: HashMap<_, _> = current.iter().map(|found| (found.name(), found)).collect();
    for resource in wanted {
        let name = resource.name();
        let (change, mut fields) = compare(current.get(&name).copied(), resource)?;
        if !dry_run {
            let replaced = apply_one(resource, change, client).await;
            if let Some(found) = replaced.with_context(|| format!("{} {name}", T::KIND))? {
                (_, fields) = compare(Some(&found), resource)?;
            }
        }
        outcomes.push(Outcome {
            kind: T::KIND,
            name,
            change,
            fields,
        });
    }
    Ok(outcomes)
}

/// Creates or changes a resource. Returns the one that it has replaced.
async fn apply_one<T: Resource>(
    wanted: &T,
    change: Change,
    client: &OperatorClient,
) -> Result<Option<T>> {
    match change {
        Change::Created => {
            wanted.create(client).await?;
            Ok(None)
        }
        Change::Changed => wanted.replace(client).await.map(Some),
        Change::None | Change::Deleted => Ok(None),
    }
}

/// Reads a TOML or JSON file, and refuses unknown fields.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let read = match path.to_str() {
        Some("-") => io::read_to_string(io::stdin()),
        _ => read_text(path),
    };
    let text = read.with_context(|| format!("cannot read {}", path.display()))?;
    let is_json = match path.extension() {
        Some(extension) => extension == "json",
        None => text.trim_start().starts_with('{'),
    };
    let parsed = match is_json {
        true => strict(&mut serde_json::Deserializer::from_str(&text)).map_err(Into::into),
        false => from_toml(&text),
    };
    parsed.with_context(|| path.display().to_string())
}

fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T> {
    let (parsed, unknown) = with_unknown(toml::Deserializer::parse(text)?)?;
    if let Some(field) = unknown {
        let line = line_of(text, &field).map_or(String::new(), |line| format!("line {line}: "));
        bail!("{line}unknown field `{field}`");
    }
    Ok(parsed)
}

/// Returns the line of a key in a TOML document, from 1. The key is given by its path.
fn line_of(text: &str, path: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let (mut table, mut array) = (Some(document.get_ref()), None::<&DeArray<'_>>);
    let mut start = 0;
    for word in path.split('.') {
        let value = match (table, array) {
            (Some(table), _) => {
                let mut entries = table.iter();
                let (key, value) = entries.find(|(key, _)| key.get_ref() == word)?;
                start = key.span().start;
                value
            }
            (None, Some(array)) => array.get(word.parse::<usize>().ok()?)?,
            (None, None) => return None,
        };
        (table, array) = (value.get_ref().as_table(), value.get_ref().as_array());
    }
    Some(text[..start].matches('\n').count() + 1)
}

fn compare<T: Serialize>(current: Option<&T>, wanted: &T) -> Result<(Change, Vec<String>)> {
    let Some(current) = current else {
        return Ok((Change::Created, Vec::new()));
    };
    let fields = differing(
        &serde_json::to_value(current)?,
        &serde_json::to_value(wanted)?,
    );
    Ok((
        if fields.is_empty() {
            Change::None
        } else {
            Change::Changed
        },
        fields,
    ))
}

fn differing(current: &Value, wanted: &Value) -> Vec<String> {
    let Some(wanted) = wanted.as_object() else {
        return Vec::new();
    };
    wanted
        .iter()
        .filter(|(key, value)| current.get(key) != Some(value))
        .map(|(key, _)| key.clone())
        .collect()
}

fn describe(outcome: &Outcome, dry_run: bool) -> String {
    let fields = outcome.fields.join(", ");
    match (outcome.change, dry_run) {
        (Change::None, _) => "unchanged".to_owned(),
        (Change::Created, false) => "created".to_owned(),
        (Change::Created, true) => "would be created".to_owned(),
        (Change::Changed, false) => format!("changed: {fields}"),
        (Change::Changed, true) => format!("would be changed: {fields}"),
        (Change::Deleted, false) => "deleted".to_owned(),
        (Change::Deleted, true) => "would be deleted".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_is_compared_field_by_field() {
        let wanted: Wanted = toml::from_str(
            r#"
            [[tenants]]
            name = "acme"

            [[flows]]
            name = "stage"
            tenant = "acme"
            ingress = "edge-1"
            egress = "edge-2"
            mode = "evidence"
            select = { destination = "203.0.113.0/24", protocol = 17, destination_ports = [5004, 5005] }
            trigger = { select = { destination = "198.51.100.0/24" } }
            "#,
        )
        .unwrap();
        let flow = &wanted.flows[0];
        assert_eq!(compare(None, flow).unwrap().0, Change::Created);
        assert_eq!(compare(Some(flow), flow).unwrap().0, Change::None);
        let current = Flow {
            paths: vec![1],
            trigger: None,
            ..flow.clone()
        };
        let (change, fields) = compare(Some(&current), flow).unwrap();
        assert_eq!(
            (change, fields),
            (
                Change::Changed,
                vec!["paths".to_owned(), "trigger".to_owned()]
            )
        );
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wanted.toml");
        fs::write(&path, "[[tenants]]\nname = \"acme\"\ncolour = \"red\"\n").unwrap();
        let error = format!("{:#}", read::<Wanted>(&path).unwrap_err());
        assert!(
            error.ends_with("wanted.toml: line 3: unknown field `tenants.0.colour`"),
            "{error}"
        );
    }
}
