//! Money: four places from whole micro-units, all of them in the title, and never a float.

use cantrip_service::cantrip::canon::Money;
use cantrip_service::wording::decimal;
use maud::{Markup, html};

/// Returns an amount with four places; its title has all six.
pub(crate) fn money(amount: Money) -> Markup {
    let currency = amount.currency();
    html! {
        data class="money" value=(amount.micros()) title={ (decimal(amount.micros(), 6)) " " (currency) } {
            (decimal(amount.micros(), 4)) " " (currency)
        }
    }
}

/// Returns an amount, or what stands where none is known.
pub(crate) fn money_of(amount: Option<Money>) -> Markup {
    html! {
        @if let Some(amount) = amount { (money(amount)) }
        @else { span class="faint" { "unknown" } }
    }
}

/// Returns the share of a budget that was used, as a bar. Amounts of two currencies have no share.
pub(crate) fn budget_bar(used: Option<Money>, budget: Option<Money>) -> Markup {
    const WIDTH: i128 = 112;
    let share = used.zip(budget).filter(|(used, budget)| used.currency() == budget.currency() && budget.micros() > 0);
    html! {
        @if let Some((used, budget)) = share {
            @let width = (i128::from(used.micros()) * WIDTH / i128::from(budget.micros())).min(WIDTH);
            svg class="meterline" viewBox="0 0 112 5" preserveAspectRatio="none" aria-hidden="true" {
                rect width="112" height="5" rx="2.5" fill="var(--line)" {}
                rect width=(width.to_string()) height="5" rx="2.5" fill="var(--accent)" {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_has_four_places_and_all_six_in_its_title() {
        let amount: Money = "0.732149 USD".parse().unwrap();
        assert_eq!(
            money(amount).into_string(),
            r#"<data class="money" value="732149" title="0.732149 USD">0.7321 USD</data>"#
        );
    }

    #[test]
    fn a_bar_never_exceeds_its_budget_and_needs_one_currency() {
        let amount = |text: &str| Some(text.parse::<Money>().unwrap());
        assert!(
            budget_bar(amount("3.00 USD"), amount("1.00 USD"))
                .into_string()
                .contains(r#"<rect width="112" height="5" rx="2.5" fill="var(--accent)">"#)
        );
        assert!(budget_bar(amount("0.50 USD"), amount("1.00 USD")).into_string().contains(r#"<rect width="56""#));
        assert_eq!(budget_bar(amount("0.50 USD"), amount("1.00 EUR")).into_string(), "");
    }
}
