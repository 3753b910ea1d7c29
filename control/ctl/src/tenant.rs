mod cascade;

use crate::outdated::unless_changed;
use crate::output::Output;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_model::Name;
use hawser_model::resource::Tenant;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List all tenants
    #[command(after_help = "Example: hawser ctl tenant list")]
    List,
    /// Show one tenant
    #[command(after_help = "Example: hawser ctl tenant show acme")]
    Show {
        /// Name of the tenant
        tenant: Name,
    },
    /// Create a tenant
    #[command(after_help = "Example: hawser ctl tenant create acme --description Acme")]
    Create {
        /// Name of the tenant
        tenant: Name,
        /// Description for people
        #[arg(long, default_value_t)]
        description: String,
    },
    /// Change the description of a tenant
    #[command(after_help = "Example: hawser ctl tenant set acme --description Acme")]
    Set {
        /// Name of the tenant
        tenant: Name,
        /// Description for people
        #[arg(long)]
        description: String,
    },
    /// Delete a tenant that has neither nodes nor flows nor tokens
    #[command(after_help = "Example: hawser ctl tenant delete acme --cascade")]
    Delete {
        /// Name of the tenant
        tenant: Name,
        /// First delete what belongs to it: its tokens, flows, tracks, settings of tunnel clients and nodes.
        /// Prints what it would delete, and does it only with --yes
        #[arg(long)]
        cascade: bool,
        /// Delete without asking
        #[arg(long, requires = "cascade")]
        yes: bool,
    },
}

impl Command {
    /// Returns whether the command changes nothing.
    pub(crate) fn only_reads(&self) -> bool {
        matches!(self, Command::List | Command::Show { .. })
    }
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    match command {
        Command::List => {
            let tenants = client.tenants().all().await?;
            output.list(&tenants, &["name", "description"], |tenant| {
                vec![tenant.name.to_string(), tenant.description.clone()]
            })
        }
        Command::Show { tenant } => {
            let tenant = client.tenant(tenant).await?;
            let fields = [
                ("name", tenant.name.to_string()),
                ("description", tenant.description.clone()),
            ];
            output.one(&tenant, &fields)
        }
        Command::Create {
            tenant,
            description,
        } => {
            let tenant = Tenant {
                name: tenant.clone(),
                description: description.clone(),
            };
            let tenant = client.create_tenant(&tenant).await?;
            output.changed(&tenant, &format!("tenant {} created", tenant.name))
        }
        Command::Set {
            tenant,
            description,
        } => {
            let changed = change(client, tenant, description).await?;
            output.changed(&changed, &format!("tenant {tenant} changed"))
        }
        Command::Delete {
            tenant,
            cascade: true,
            yes,
        } => cascade::delete(client, tenant, *yes, output).await,
        Command::Delete { tenant, .. } => {
            client.delete_tenant(tenant).await?;
            output.done(&format!("tenant {tenant} deleted"))
        }
    }
}

/// Changes the description of a tenant unless the tenant was changed since it was read.
pub(crate) async fn change(
    client: &OperatorClient,
    tenant: &Name,
    description: &str,
) -> Result<Tenant> {
    let before = client.tagged_tenant(tenant).await?;
    let changed = Tenant {
        description: description.to_owned(),
        ..before.value.clone()
    };
    let changed = client.change_tenant(&before, &changed).await;
    unless_changed(changed, format_args!("tenant {tenant}"))
}
