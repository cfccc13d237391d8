"""Judge and calibrate answers with scikit-learn: pip install 'token-trie[demo,calibration]'."""

import token_trie
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import StratifiedKFold, cross_validate
from token_trie.engines.sklearn import TrieClassifier

billing = """My card was charged two times. Where is my invoice? I want my money back. The price on the bill is wrong.
Can I pay in two parts? You charged me after I cancelled. My payment was declined. The discount is missing.
How do I change my card? I need a receipt for last month. The tax on the bill is wrong. Please refund my order."""
technical = """The app closes by itself. Nothing happens when I press start. I cannot log in. The picture is frozen.
The page does not load. My password link is broken. Sync stopped on my phone. The video has no sound.
I get an error when I save. The search finds nothing. The server cannot be reached. Notifications do not arrive."""
texts, labels = [], []
for label, sentences in (("billing", billing), ("technical", technical)):
    for sentence in sentences.replace("\n", " ").replace("?", ".").split(". "):
        texts.append(sentence.strip(". ") + ".")
        labels.append(label)

model = {
    "model_path": token_trie.demo_model(),  # or any GGUF file
    "question": "Which team should handle this?",
    "choices": {"billing": "payments, charges and invoices", "technical": "the app does not work"},
}
# Each row is read once: the estimators share what the model said of it.
raw = TrieClassifier(**model, calibration=None)
estimators = {
    "as it is": raw,
    "a bias a class": TrieClassifier(**model, calibration="bias"),
    "a head on the hidden state": TrieClassifier(**model, calibration="head"),
    "scikit-learn's sigmoid": CalibratedClassifierCV(raw, cv=3),
}
folds = StratifiedKFold(6, shuffle=True, random_state=0)
for name, estimator in estimators.items():
    scores = cross_validate(estimator, texts, labels, cv=folds, scoring=["accuracy", "neg_log_loss"])
    print(f"{name:28} {scores['test_accuracy'].mean():.0%} {-scores['test_neg_log_loss'].mean():.2f}")

best = estimators["a head on the hidden state"].fit(texts, labels)
print(best.predict(["I was charged twice this month.", "The screen stays black."]))
