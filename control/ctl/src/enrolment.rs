use crate::output::{Output, is_wanted};
use crate::text;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_model::Name;
use hawser_model::access::ListedEnrolment;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List enrolment tokens, used and unused, without their secrets
    #[command(after_help = "Example: hawser ctl enrolment list --node edge-1")]
    List {
        /// Only tokens for this node
        #[arg(long)]
        node: Option<Name>,
    },
    /// Withdraw an enrolment token; a node that was enrolled with it keeps its certificate
    #[command(after_help = "Example: hawser ctl enrolment withdraw edge-1 ID")]
    Withdraw {
        /// Name of the node that the token enrols
        node: Name,
        /// Identifier of the token, as shown by `list`
        id: String,
    },
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    match command {
        Command::List { node } => {
            let mut enrolments = client.enrolments().all().await?;
            enrolments.retain(|enrolment| is_wanted(node.as_ref(), &enrolment.node));
            output.list(
                &enrolments,
                &["node", "id", "tenant", "created", "expires", "used"],
                row,
            )
        }
        Command::Withdraw { node, id } => {
            client.withdraw_enrolment(node, id).await?;
            output.done(&format!("token {id} of node {node} withdrawn"))
        }
    }
}

fn row(enrolment: &ListedEnrolment) -> Vec<String> {
    vec![
        enrolment.node.to_string(),
        enrolment.id.clone(),
        enrolment.tenant.to_string(),
        text::ago(enrolment.created_unix_ms),
        text::date(enrolment.expires_unix_ms),
        text::or_none(enrolment.used_unix_ms.map(text::ago)),
    ]
}
