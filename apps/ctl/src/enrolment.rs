use crate::output::{Output, is_wanted};
use crate::text;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_control::Name;
use hawser_control::access::ListedEnrolment;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// All tokens that can enrol a node or have, without their secrets
    List {
        /// Only those for this node
        #[arg(long)]
        node: Option<Name>,
    },
    /// Make a token void; a node that was enrolled by it keeps its certificate
    Withdraw {
        /// The node that it enrols
        node: Name,
        /// As `list` shows it
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
            output.done(&format!("the token {id} of node {node} is void"))
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
