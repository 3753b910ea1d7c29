mod describe;
mod options;

use crate::outdated::unless_changed;
use crate::output::{Output, is_wanted};
use crate::text;
use anyhow::Result;
use hawser_client::{OperatorClient, Tag};
use hawser_model::Name;
use hawser_model::resource::{Flow, Mode, Pruning, Selector, Trigger};
use options::{Options, name_of};

/// The columns of a list of flows.
const COLUMNS: [&str; 8] = [
    "name", "tenant", "from", "to", "packets", "paths", "mode", "starts",
];

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List all flows
    #[command(after_help = "Example: hawser ctl flow list --node edge-1")]
    List {
        /// Only flows of this tenant
        #[arg(long)]
        tenant: Option<Name>,
        /// Only flows into or out of this node
        #[arg(long)]
        node: Option<Name>,
    },
    /// Show one flow
    #[command(after_help = "Example: hawser ctl flow show video")]
    Show {
        /// Name of the flow
        flow: Name,
    },
    /// Show why a flow is protected or not: conditions, policy, paths and events
    #[command(after_help = "Example: hawser ctl flow describe video")]
    Describe {
        /// Name of the flow
        flow: Name,
    },
    Create(Create),
    /// Change a flow; options that are not given keep their values
    #[command(after_help = "Example: hawser ctl flow set video --paths 1,2")]
    Set {
        /// Name of the flow
        flow: Name,
        #[command(flatten)]
        options: Options,
    },
    /// Delete a flow; its packets take the default route
    #[command(after_help = "Example: hawser ctl flow delete video")]
    Delete {
        /// Name of the flow
        flow: Name,
    },
}

/// Create a flow
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: hawser ctl flow create video --tenant acme --ingress edge-1 --egress edge-2 --destination 203.0.113.0/24"
)]
pub(crate) struct Create {
    /// Name of the flow
    flow: Name,
    /// Tenant that the flow belongs to
    #[arg(long)]
    tenant: Name,
    /// Node that replicates
    #[arg(long)]
    ingress: Name,
    /// Node that deduplicates
    #[arg(long)]
    egress: Name,
    #[command(flatten)]
    options: Options,
}

impl Command {
    /// Returns whether the command changes nothing.
    pub(crate) fn only_reads(&self) -> bool {
        matches!(
            self,
            Command::List { .. } | Command::Show { .. } | Command::Describe { .. }
        )
    }
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    match command {
        Command::List { tenant, node } => {
            let mut flows = client.flows().all().await?;
            flows.retain(|flow| {
                let is_end = |end| is_wanted(node.as_ref(), end);
                is_wanted(tenant.as_ref(), &flow.tenant)
                    && (is_end(&flow.ingress) || is_end(&flow.egress))
            });
            output.list(&flows, &COLUMNS, row)
        }
        Command::Show { flow } => {
            let flow = client.flow(flow).await?;
            output.one(&flow, &fields(&flow))
        }
        Command::Describe { flow } => {
            let status = client.flow_status(flow).await?;
            match output.json {
                true => output.one(&status, &[]),
                false => output.text(&describe::describe(&status)),
            }
        }
        Command::Create(create) => {
            let flow = client.create_flow(&create.flow()?).await?;
            output.changed(&flow, &format!("flow {} created", flow.name))
        }
        Command::Set { flow, options } => {
            let changed = change(client, flow, options).await?;
            output.changed(&changed, &format!("flow {flow} changed"))
        }
        Command::Delete { flow } => {
            client.delete_flow(flow).await?;
            output.done(&format!("flow {flow} deleted"))
        }
    }
}

async fn change(client: &OperatorClient, flow: &Name, options: &Options) -> Result<Flow> {
    let before = client.tagged_flow(flow).await?;
    let mut changed = before.value.clone();
    options.change(&mut changed)?;
    let changed = client.change_flow(&before, &changed).await;
    unless_changed(changed, format_args!("flow {flow}"))
}

/// Replaces a flow unless it was changed since it was read.
pub(crate) async fn replace(client: &OperatorClient, flow: &Flow, tag: &Tag) -> Result<Flow> {
    let replaced = client.replace_flow(flow, tag).await;
    unless_changed(replaced, format_args!("flow {}", flow.name))
}

impl Create {
    fn flow(&self) -> Result<Flow> {
        let destination = self.options.required()?;
        let mut flow = Flow {
            name: self.flow.clone(),
            tenant: self.tenant.clone(),
            ingress: self.ingress.clone(),
            egress: self.egress.clone(),
            select: Selector {
                destination,
                protocol: None,
                source_ports: None,
                destination_ports: None,
            },
            paths: Vec::new(),
            mode: Mode::default(),
            trigger: None,
            pruning: Default::default(),
            transparent: false,
        };
        self.options.change(&mut flow)?;
        Ok(flow)
    }
}

fn row(flow: &Flow) -> Vec<String> {
    vec![
        flow.name.to_string(),
        flow.tenant.to_string(),
        flow.ingress.to_string(),
        flow.egress.to_string(),
        packets(&flow.select),
        paths(flow),
        mode(flow.mode),
        starts(flow.trigger.as_ref()),
    ]
}

fn fields(flow: &Flow) -> Vec<(&'static str, String)> {
    let mut fields: Vec<_> = COLUMNS.into_iter().zip(row(flow)).collect();
    if let Some(trigger) = &flow.trigger {
        let size = text::range(trigger.request_bytes);
        fields.push(("requests", packets(&trigger.select)));
        fields.push(("request size", format!("{size} bytes")));
    }
    if flow.transparent {
        fields.push(("copies", "as they are (transparent)".to_owned()));
    }
    fields.extend(pruning_fields(&flow.pruning));
    fields
}

/// Returns the fields of the settings that are given.
fn pruning_fields(pruning: &Pruning) -> impl Iterator<Item = (&'static str, String)> {
    let tolerance = pruning.tolerance_ms.map(|ms| format!("{ms} ms"));
    let window = pruning.window_packets;
    let window = window.map(|packets| format!("{packets} packets"));
    let budget = pruning.budget_ratio;
    let budget = budget.map(|copies| format!("{copies} copies"));
    let damage = pruning.tolerated_damage_ratio;
    let damage = damage.map(|ratio| ratio.to_string());
    let fields = [
        ("tolerance", tolerance),
        ("window", window),
        ("budget", budget),
        ("tolerated damage", damage),
    ];
    fields
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
}

fn mode(mode: Mode) -> String {
    clap::ValueEnum::to_possible_value(&options::ModeArg::from(mode))
        .map_or_else(text::none, |value| value.get_name().to_owned())
}

fn packets(select: &Selector) -> String {
    let mut words = vec![format!("to {}", select.destination)];
    words.extend(select.protocol.map(name_of));
    words.extend(
        select
            .source_ports
            .map(|ports| format!("from port {}", text::range(ports))),
    );
    words.extend(
        select
            .destination_ports
            .map(|ports| format!("port {}", text::range(ports))),
    );
    words.join(", ")
}

fn paths(flow: &Flow) -> String {
    let numbers: Vec<_> = flow.paths.iter().map(u8::to_string).collect();
    if numbers.is_empty() {
        "all".to_owned()
    } else {
        numbers.join(" ")
    }
}

fn starts(trigger: Option<&Trigger>) -> String {
    trigger.map_or_else(
        || "at once".to_owned(),
        |trigger| {
            format!(
                "after {} requests later than {} ms",
                trigger.consecutive, trigger.late_after_ms
            )
        },
    )
}
