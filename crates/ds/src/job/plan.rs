//! The cost of a job before its first call: at worst, and probably.

use cantrip::canon::Money;
use cantrip::canon::json::canonical;
use cantrip::crystal::limits::WINDOW_TOKENS_ASSUMED;
use cantrip::crystal::{AnyCrystal, Crystal, Price};
use cantrip::loom::{Contracts, PageRequest, ReceiptFilter};
use cantrip::reply::Refusal;
use cantrip_contract::{Artifact, SignatureId, Strategy};
use serde::Serialize;
use serde_json::Value;

use crate::limits::{
    LIKELY_PAGES_MAX, LIKELY_RECEIPTS, MESSAGE_TOKENS_BOUND, PROGRAM_RESULT_TOKENS_BOUND, PROMPT_FRAME_TOKENS,
    REPAIR_TOKENS_BOUND, SUB_CALL_TOKENS_BOUND, VERIFY_PAGE,
};
use crate::options::PredictOptions;
use crate::predict::{Predictor, refuse_store_error};
use crate::settings::Budget;

/// The most that something can cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CostBound {
    /// Nothing is charged for it.
    Free,
    AtMost(Money),
    /// A price is unknown, or a sum has two currencies.
    Unknown,
}

impl CostBound {
    /// Returns the bound of a cost that may be unknown.
    pub fn of(cost: Option<Money>) -> Self {
        match cost {
            Some(cost) if cost.micros() == 0 => Self::Free,
            Some(cost) => Self::AtMost(cost),
            None => Self::Unknown,
        }
    }

    /// Returns the sum of both bounds.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Free, bound) | (bound, Self::Free) => bound,
            (Self::AtMost(one), Self::AtMost(two)) => one.plus(two).map_or(Self::Unknown, Self::AtMost),
        }
    }

    /// Returns the bound of this many of them.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        match self {
            Self::AtMost(_) if count == 0 => Self::Free,
            Self::AtMost(one) => one.times(count).map_or(Self::Unknown, Self::AtMost),
            Self::Free | Self::Unknown => self,
        }
    }

    pub fn money(self) -> Option<Money> {
        match self {
            Self::AtMost(money) => Some(money),
            Self::Free | Self::Unknown => None,
        }
    }
}

/// The money part of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CostPlan {
    pub worst: CostBound,
    /// The mean of what the last receipts of this signature and model captured, for all trials; none if there are none.
    pub likely: Option<Money>,
    pub budget: Option<Money>,
    pub max_calls: Option<u64>,
    /// The authorization that pays.
    pub authorization: String,
}

/// Returns the tokens of a text at most: no tokenizer makes more than one token of a byte, and the text is sent as JSON.
fn text_tokens(text: &str) -> u64 {
    canonical(&Value::String(text.to_owned())).map_or(text.len(), |written| written.len()) as u64
}

/// The requests of one predict.
struct RequestBound<'a> {
    price: &'a Price,
    window: Option<u64>,
    output: u64,
}

impl<'a> RequestBound<'a> {
    fn of(crystal: &AnyCrystal, price: &'a Price, max_tokens: Option<u32>) -> Self {
        let profile = crystal.profile();
        let window = profile.window.filter(|window| *window != WINDOW_TOKENS_ASSUMED);
        Self { price, window, output: u64::from(profile.output_tokens(max_tokens)) }
    }

    /// Returns the worst cost of a request with a prompt of at most this many tokens.
    fn cost(&self, prompt: u64) -> CostBound {
        let prompt = self.window.map_or(prompt, |window| prompt.min(window));
        CostBound::of(self.price.worst_cost(prompt, self.output))
    }

    /// Returns the worst cost of this many requests, each of which sees the answers to those before it.
    fn chain(&self, first: u64, growth: u64, count: u64) -> CostBound {
        (0..count).fold(CostBound::Free, |sum, place| {
            let grown = growth.saturating_add(self.output).saturating_mul(place);
            sum.plus(self.cost(first.saturating_add(grown)))
        })
    }
}

impl Predictor {
    /// Returns the most that one predict can cost, all repairs, iterations and sub-calls included.
    pub async fn worst_predict_cost(
        &self,
        signature: &SignatureId,
        artifact: &Artifact,
        input: &Value,
        how: &PredictOptions,
    ) -> Result<CostBound, Refusal> {
        let signature = self.catalog.signature(signature).await?;
        let budget = Budget::resolve(how, signature.program())?;
        let params = how.params.with_fallback(artifact.params());
        let crystal = self.crystals.crystal(how.model.as_deref().or(params.model.as_deref()))?;
        let price = crystal.price();
        if price == Price::Free {
            return Ok(CostBound::Free);
        }
        let rendered = signature.render(artifact, input)?;
        let mut prompt = PROMPT_FRAME_TOKENS + text_tokens(&rendered.system) + text_tokens(&rendered.user);
        let schema = canonical(signature.output().source()).map_or(0, |text| text.len() as u64);
        // The schema is part of the gate, or of the format, or is written out for a model that has neither.
        prompt = prompt.saturating_add(schema.saturating_mul(2)).saturating_add(4 * MESSAGE_TOKENS_BOUND);
        for demo in artifact.demos() {
            let asked = text_tokens(&signature.render(artifact, &demo.input)?.user);
            let written = canonical(&demo.input).unwrap_or_default();
            let answered = text_tokens(&canonical(&demo.output).unwrap_or_default());
            let told = asked.max(text_tokens(&written)).saturating_add(answered);
            prompt = prompt.saturating_add(told).saturating_add(2 * MESSAGE_TOKENS_BOUND);
        }
        let requests = RequestBound::of(&crystal, &price, params.max_tokens);
        let turns = u64::from(budget.repairs) + 1;
        match artifact.strategy() {
            Strategy::Direct => Ok(requests.chain(prompt, REPAIR_TOKENS_BOUND, turns)),
            Strategy::RlmLite => {
                let described = text_tokens(&canonical(input).unwrap_or_default()).saturating_add(prompt);
                let own = requests.chain(described, PROGRAM_RESULT_TOKENS_BOUND, u64::from(budget.iterations));
                let sub_crystal = match params.sub_model.as_deref() {
                    Some(name) => self.crystals.crystal(Some(name))?,
                    None => crystal.clone(),
                };
                let sub_price = sub_crystal.price();
                let below = RequestBound::of(&sub_crystal, &sub_price, params.max_tokens);
                let child = below.chain(SUB_CALL_TOKENS_BOUND, REPAIR_TOKENS_BOUND, turns);
                Ok(own.plus(child.times(u64::from(budget.sub_calls))))
            }
        }
    }

    /// Returns the mean cost of the last predicts of this signature with this model; none if there are none.
    pub async fn likely_predict_cost(&self, signature: &SignatureId, model: &str) -> Result<Option<Money>, Refusal> {
        let wanted =
            ReceiptFilter { signature: Some(signature.clone()), latest_first: true, ..ReceiptFilter::default() };
        let mut next = Some(PageRequest { after: None, most: VERIFY_PAGE });
        let (mut sum, mut count, mut currency) = (0_i128, 0_i128, None);
        for _ in 0..LIKELY_PAGES_MAX {
            let Some(page) = next else { break };
            let listed = self.runtime.loom().receipts(wanted.clone(), page).await.map_err(refuse_store_error)?;
            for receipt in listed.items.iter().filter_map(|row| row.receipt().ok()) {
                let same = receipt.model.name.as_deref() == Some(model);
                let Some(paid_in) = receipt.budget.currency.filter(|_| same) else { continue };
                if *currency.get_or_insert(paid_in) == paid_in && count < LIKELY_RECEIPTS as i128 {
                    sum += i128::from(receipt.budget.captured);
                    count += 1;
                }
            }
            next = page.following(listed.next).filter(|_| count < LIKELY_RECEIPTS as i128);
        }
        let mean = (2 * sum + count).checked_div(2 * count).and_then(|mean| i64::try_from(mean).ok());
        Ok(mean.zip(currency).and_then(|(mean, currency)| Money::new(mean, currency).ok()))
    }
}
