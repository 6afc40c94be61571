"""The paper's tables from run folders, the published figures beside ours, as Markdown and as HTML."""
