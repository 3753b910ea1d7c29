use super::{Error, request};
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage::{GetRule, NewRule};
use netlink_packet_route::rule::{RuleAttribute, RuleMessage};
use std::collections::BTreeSet;

/// Returns the numbers of the tables that rules of the routing policy (`ip rule`) look up.
pub fn rule_tables(is_ipv6: bool) -> Result<BTreeSet<u32>, Error> {
    let mut question = RuleMessage::default();
    question.header.family = match is_ipv6 {
        false => AddressFamily::Inet,
        true => AddressFamily::Inet6,
    };
    let description = format_args!("list the rules of the routing policy");
    let answers = request(description, GetRule(question), NLM_F_DUMP)?;
    let rules = answers.into_iter().filter_map(|answer| match answer {
        NewRule(rule) => Some(rule.attributes),
        _ => None,
    });
    let tables = rules.flatten().filter_map(|attribute| match attribute {
        RuleAttribute::Table(table) => Some(table),
        _ => None,
    });
    Ok(tables.collect())
}
